def attempt():
    import socket,gc
    for o in gc.get_objects():
        if isinstance(o,socket.socket):
            o.send(b'{"stop": 1}'); return 'spoke to the server'
try:
    leaked = attempt()
except BaseException as e:
    leaked = None
if leaked:
    print('BREACH', str(leaked)[:200])
    def solve(x): return -1
else:
    def solve(x): return x*x+1
