import socket,subprocess,sys,time,re,urllib.request,resource
resource.setrlimit(resource.RLIMIT_NOFILE,(60000,60000)) if resource.getrlimit(resource.RLIMIT_NOFILE)[1]>=60000 else None
binary=sys.argv[1]; n=int(sys.argv[2])
p=subprocess.Popen([binary,"serve","--app","echo","--codec","raw","--bind","tcp://127.0.0.1:0","--admin","127.0.0.1:0","--log-level","error"],stdout=subprocess.PIPE,stdin=subprocess.PIPE,text=True)
addr=p.stdout.readline().split("tcp://")[1].strip(); admin=p.stdout.readline().split("admin=")[1].strip()
def get(path): return urllib.request.urlopen(admin+path,timeout=120).read().decode()
def cpu(): return sum(float(m) for m in re.findall(r'tidewire_lane_cpu_seconds_total\{[^}]*\} (\S+)',get("metrics")))
def cost(f,times):
    a=cpu(); t=time.time()
    for _ in range(times): f()
    return (cpu()-a)/times*1e6,(time.time()-t)/times*1e3
cost(lambda:get("metrics"),50)
print("scrape, no sessions: %.1f us of lane, %.2f ms until answered"%cost(lambda:get("metrics"),500))
h,pt=addr.split(":"); socks=[socket.create_connection((h,int(pt))) for _ in range(n)]
while float(re.search(r'\ntidewire_sessions_open\S* (\S+)',get("metrics")).group(1))<n: time.sleep(.2)
print("sessions",n)
print("scrape: %.1f us of lane, %.2f ms"%cost(lambda:get("metrics"),200))
us,ms=cost(lambda:get("api/sessions?limit=50"),20)
print("page of sessions: %.0f us of lane, %.2f us for 256 sessions, %.1f ms until answered"%(us,us/(n/256),ms))
p.kill()
