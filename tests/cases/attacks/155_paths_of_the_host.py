def attempt():
    import sys,os
    places=[sys.prefix,sys.exec_prefix,sys.executable or '',os.__file__,*sys.path]
    return [p for p in places if not p.startswith(('/python','/packages')) and p]
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
