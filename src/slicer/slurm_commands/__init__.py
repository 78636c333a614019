"""Slurm's commands, answered by slicer on one machine: sbatch, squeue, scancel, sacct, srun, sinfo, scontrol.

``slicer install --user --slurm-commands`` makes shims of these names. There is no second scheduler, no daemon
and no table: ``sbatch`` starts detached runs with ``--after``, ``--timeout`` and limits, one for each task of
an array. The number of a job is slicer's id as a decimal number, and ``sbatch`` draws the ids, so all that
depends on them (%j, the first task's SLURM_ARRAY_JOB_ID) is known before a job starts.

A job's command is ``srun --jobid=7_0 … SCRIPT``, so the jobs' files and the history know which job of Slurm
it is, and which task of which array. ``scontrol requeue`` has its process start another run with the same
``--jobid``; the last one counts.

``options`` reads command lines, ``request`` makes a run of one, ``jobs`` has states and columns. ``submit``
and ``show`` act and print.
"""
