import signal
signal.pthread_sigmask(signal.SIG_BLOCK,range(1,65))
while True: signal.pause()
