def attempt():
    import fcntl,os
    f=open(os.__file__)
    for action in (lambda: fcntl.flock(f,fcntl.LOCK_EX|fcntl.LOCK_NB),lambda: fcntl.lockf(f,fcntl.LOCK_SH|fcntl.LOCK_NB)):
        try:
            action(); return 'locked'
        except OSError: pass
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
