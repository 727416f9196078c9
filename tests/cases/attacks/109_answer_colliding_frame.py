import os
from code_inside.frames import send_frame
send_frame(['loaded'])
send_frame(['value',['d',*[[['i','%x'%(k*(2**61-1))],['n']] for k in range(20000)]]])
os._exit(0)
