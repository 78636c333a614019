"""What people do with submitit. Prints a line for each."""

import os
import sys
import time

import submitit
from submitit.slurm import slurm

slurm.SlurmJob.watcher = slurm.SlurmInfoWatcher(delay_s=1)


def work(number):
    time.sleep(0.2)
    return number, os.environ["CUDA_VISIBLE_DEVICES"]


def fail():
    raise ValueError("no")


class Train:
    """Saves at the signal before its time limit, and is run again."""

    def __init__(self, begin=0):
        self.begin = begin

    def __call__(self, path):
        if self.begin:
            return f"resumed at {self.begin}"
        with open(path, "w"):
            pass
        while True:
            time.sleep(0.05)

    def checkpoint(self, path):
        return submitit.helpers.DelayedSubmission(Train(begin=7), path)


def state(job):
    return job.watcher.get_state(job.job_id, mode="force")


executor = submitit.AutoExecutor(folder=f"{sys.argv[1]}/%j", cluster="slurm")
executor.update_parameters(
    timeout_min=5, gpus_per_node=1, slurm_array_parallelism=2, mem_gb=2, cpus_per_task=1
)
print("submit", executor.submit(work, 1).result())
print("array", [job.result()[0] for job in executor.map_array(work, range(5))])
failed = executor.submit(fail)
print("error", type(failed.exception()).__name__, state(failed))
long = executor.submit(time.sleep, 600)
while state(long) != "RUNNING":
    time.sleep(0.1)
long.cancel()
print("cancel", state(long).split()[0])
again = executor.submit(Train(), "begun")
while not os.path.exists("begun"):
    time.sleep(0.1)
again._interrupt(timeout=True)
print("requeue", again.result())
