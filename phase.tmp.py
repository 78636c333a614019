import time; T0=time.perf_counter(); _c=time.clock_gettime(time.CLOCK_BOOTTIME)
import os,sys
start=int(open('/proc/self/stat').read().rsplit(')',1)[1].split()[19])/os.sysconf('SC_CLK_TCK')
marks=[("python start",_c-start)]
def m(n): 
    global T0
    t=time.perf_counter(); marks.append((n,t-T0)); T0=time.perf_counter()
from slicer.cli import run as R
m("imports")
import slicer.launch as L, slicer.supervisor as S, slicer.ledger as G, slicer.backend.systemd as B
def wrap(mod,name,label=None):
    f=getattr(mod,name)
    def w(*a,**k):
        t=time.perf_counter()
        try: return f(*a,**k)
        finally: marks.append(("  "+(label or name),time.perf_counter()-t))
    setattr(mod,name,w)
wrap(L,"plan"); wrap(L,"open_ledger"); wrap(L,"_ready"); wrap(L,"_acquire"); wrap(L,"environment"); wrap(B.SystemdBackend,"prepare"); wrap(B,"_load_dbuslib")
wrap(B.SystemdBackend,"start"); wrap(B.SystemdBackend,"_start_transient"); wrap(B.SystemdBackend,"enforced"); wrap(S._Supervisor,"_wait"); wrap(S,"keep"); wrap(S._Supervisor,"_finish"); wrap(os,"fork"); wrap(G.HeldLease,"update"); wrap(G.HeldLease,"release"); wrap(S,"_event"); wrap(L.profiles,"load"); wrap(os,"waitpid"); wrap(R,"run")
m("wrap")
pid=os.getpid()
rc=R.main(sys.argv[1:])
if os.getpid()==pid:
    m("main")
    for n,t in marks: print(f"{t*1e3:7.2f} {n}",file=sys.stderr)
    os._exit(0)
