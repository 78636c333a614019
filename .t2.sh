script -qc "stty cols 70; slicer doctor" /dev/null | cat -v | head -30
