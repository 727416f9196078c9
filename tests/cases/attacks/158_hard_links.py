def attempt():
    import os
    os.link(os.__file__,'/tmp/x'); return 'linked'
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
