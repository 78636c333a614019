"""Linux as slicer sees it: processes, cgroups, signals, inotify, the terminal."""
