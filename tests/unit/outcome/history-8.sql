BEGIN TRANSACTION;
CREATE TABLE decisions (
    id INTEGER PRIMARY KEY,  -- in the order of the decisions
    route TEXT NOT NULL,
    decided_at REAL NOT NULL,  -- seconds since 1970
    kinds TEXT NOT NULL,  -- JSON array
    metrics TEXT NOT NULL,  -- JSON array of numbers, in the order of kinds
    bounds TEXT NOT NULL,  -- JSON array of numbers and nulls, in the same order
    destination TEXT NOT NULL,
    mode TEXT NOT NULL,
    result TEXT NOT NULL,
    job TEXT NOT NULL,  -- its outcome is in outcomes, once it has ended
    after_job TEXT NOT NULL,
    waited_s REAL NOT NULL,
    input TEXT NOT NULL,
    command TEXT NOT NULL,  -- JSON array
    reason TEXT NOT NULL,
    at_least TEXT NOT NULL  -- JSON array of 0 and 1, in the order of kinds: the metric is more than that
);
INSERT INTO "decisions" VALUES(1,'whisper',1700000000.25,'["duration", "pixels"]','[723.5, 8000000.0]','[3600.0, null]','gpu','gpu','started','0123456789ab','',0.25,'a b.mp4','["whisper", "a b.mp4", "--model=large"]','','[0, 1]');
CREATE TABLE outcomes (
    id INTEGER PRIMARY KEY,  -- in the order of the jobs' ends
    job TEXT NOT NULL UNIQUE,  -- both halves of a supervisor may write the same outcome
    name TEXT NOT NULL,
    command TEXT NOT NULL,  -- JSON array
    profile TEXT NOT NULL,
    backend TEXT NOT NULL,
    manager TEXT NOT NULL,
    unit TEXT NOT NULL,
    slice TEXT NOT NULL,
    gpus TEXT NOT NULL,  -- JSON array of UUIDs
    vram_mib INTEGER,
    vram_peak_mib TEXT NOT NULL DEFAULT '[]',  -- JSON array, in the order of gpus
    cpu_slots INTEGER NOT NULL,
    slots TEXT NOT NULL DEFAULT '{}',  -- JSON object: how many of which name, cpu_slots among them
    forced INTEGER NOT NULL DEFAULT 0,
    uid INTEGER NOT NULL,
    reason TEXT NOT NULL,
    exit_code INTEGER NOT NULL,
    signal INTEGER,
    started_at REAL NOT NULL,  -- seconds since 1970: datetime(started_at, 'unixepoch', 'localtime')
    waited_s REAL NOT NULL,
    wall_s REAL NOT NULL,
    leftovers INTEGER NOT NULL,
    enforced TEXT NOT NULL,  -- JSON array of directives
    not_enforced TEXT NOT NULL,  -- JSON array of directives
    paused_s REAL,
    ended_by TEXT NOT NULL DEFAULT '',
    changed TEXT NOT NULL DEFAULT '[]',  -- JSON array of NAME=VALUE
    changed_outside TEXT NOT NULL DEFAULT '[]',  -- JSON array of NAME=VALUE
    sharing TEXT,  -- JSON object, of a job that was run with --share
    directory TEXT NOT NULL DEFAULT '',
    log TEXT NOT NULL DEFAULT '',  -- the file with its output
    gpu_indices TEXT NOT NULL DEFAULT '[]',  -- JSON array, in the order of gpus
    git TEXT,  -- JSON object: which code ran
    cpu_s REAL,
    cpu_user_s REAL,
    cpu_system_s REAL,
    throttled_s REAL,
    memory_peak_bytes INTEGER,
    io_read_bytes INTEGER,
    io_write_bytes INTEGER,
    oom_kills INTEGER,
    pressure_cpu_s REAL,
    pressure_memory_s REAL,
    pressure_io_s REAL
);
INSERT INTO "outcomes" VALUES(1,'0123456789ab','train','["python3", "train.py", "--epochs=3"]','gpu','systemd','system','slicer-0123456789ab.scope','gpu.slice','["GPU-a", "GPU-b"]',8192,'[9318, 0]',0,'{}',1,0,'oom-kill',137,9,1700000000.5,0.25,12.5,2,'["CPUQuota", "MemoryMax"]','["IOWeight"]',2.5,'slicer stop','["CPUQuota=50%"]','["DeviceAllow=/dev/null rw, char-pts rw"]','{"wants": "both", "mode": "time=5ms", "processes": 2, "gated": 5000, "passed": 0, "turns": 7, "held_s": 9.25, "waits": 0, "waited_s": 0.0, "longest_wait_s": 0.0, "undrained": 0, "allocations": 0, "refused": 0, "uncounted": 0, "peak_mib": [6000, 0], "overhead_mib": [512, 0], "got_past_cap": 1, "driver_cap": 0, "troubles": ["mps", "other"]}','','','[3, 0]','{"commit": "5a3c9f015a3c9f015a3c9f015a3c9f015a3c9f01", "branch": "main", "dirty": 1, "diff": "0c1d2e3f0c1d2e3f0c1d2e3f0c1d2e3f0c1d2e3f0c1d2e3f0c1d2e3f0c1d2e3f"}',1.5,NULL,NULL,NULL,1099511627776,0,NULL,1,NULL,NULL,NULL);
INSERT INTO "outcomes" VALUES(2,'ba9876543210','eval','["python3", "train.py", "--epochs=3"]','gpu','systemd','system','slicer-0123456789ab.scope','gpu.slice','["GPU-a", "GPU-b"]',8192,'[9318, 0]',0,'{}',1,0,'oom-kill',137,9,1700000000.5,0.25,12.5,2,'["CPUQuota", "MemoryMax"]','["IOWeight"]',2.5,'slicer stop','["CPUQuota=50%"]','["DeviceAllow=/dev/null rw, char-pts rw"]','{"wants": "both", "mode": "time=5ms", "processes": 2, "gated": 5000, "passed": 0, "turns": 7, "held_s": 9.25, "waits": 0, "waited_s": 0.0, "longest_wait_s": 0.0, "undrained": 0, "allocations": 0, "refused": 0, "uncounted": 0, "peak_mib": [6000, 0], "overhead_mib": [512, 0], "got_past_cap": 1, "driver_cap": 0, "troubles": ["mps", "other"]}','','','[3, 0]','{"commit": "5a3c9f015a3c9f015a3c9f015a3c9f015a3c9f01", "branch": "main", "dirty": 1, "diff": "0c1d2e3f0c1d2e3f0c1d2e3f0c1d2e3f0c1d2e3f0c1d2e3f0c1d2e3f0c1d2e3f"}',1.5,NULL,NULL,NULL,1099511627776,0,NULL,1,NULL,NULL,NULL);
CREATE TABLE samples (job TEXT PRIMARY KEY, series BLOB NOT NULL);
COMMIT;
PRAGMA user_version=8;
