def attempt():
    import os,sys
    seen=[p for p in sys.path if 'site-packages' in p or 'dist-packages' in p]
    for p in ('/python/lib/python%d.%d/site-packages'%sys.version_info[:2],):
        if os.path.isdir(p): seen+=os.listdir(p)
    return seen
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
