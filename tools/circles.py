"""A contract for import-linter: no circles of modules, and a package's face is a module like others.

Its own contract for that, "acyclic_siblings", does not look at faces (``__init__.py``).
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output


class NoCircles(Contract):
    """Lazy and type-only imports count, too. That a package contains a module is no import."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        imports = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            return ContractCheck(kept=False, metadata={"circle": error.args[1]})
        return ContractCheck(kept=True)

    def render_broken_contract(self, check: ContractCheck) -> None:
        output.print_error(f"{' is imported by '.join(check.metadata['circle'])}", bold=True)
