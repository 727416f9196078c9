import threading,time
from code_inside.frames import send_frame
def later():
    time.sleep(0.05)
    for _ in range(20): send_frame(['value',['i','1']])
threading.Thread(target=later).start()
def solve(x):
    return 0
