def attempt():
    import gc,sys
    want={5,50,1000000000001}
    f=sys._getframe()
    while f:
        for v in list(f.f_locals.values())+list(f.f_globals.values()):
            if isinstance(v,(list,tuple)) and len(v)==6 and v[-1]==10**12+1: return 'frame'
        f=f.f_back
    for o in gc.get_objects():
        if isinstance(o,(list,tuple)) and len(o)==6 and type(o[-1]) is int and o[-1]==10**12+1: return 'heap'
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
