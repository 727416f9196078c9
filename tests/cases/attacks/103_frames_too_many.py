from code_inside.frames import send_frame
def solve(x):
    send_frame(['value',['i','1']])
    return x*x+1
