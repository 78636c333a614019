def queue(box):
    return {}
