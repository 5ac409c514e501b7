import csv,sys
rows=[]
header=None
for line in csv.reader(open(sys.argv[1])):
    if "Source" in line and any("Samples" in c or "samples" in c for c in line): header=line; rows=[]; continue
    if header and len(line)==len(header): rows.append(line)
if not header: print("no header"); print(open(sys.argv[1]).read()[:1500]); sys.exit()
col=[i for i,c in enumerate(header) if c.strip() in ("# Samples","Warp Stall Sampling (All Samples)","Samples")] or [i for i,c in enumerate(header) if "Sampl" in c]
col=col[0]; src=header.index("Source")
stall=[i for i,c in enumerate(header) if c.startswith("stall_") and "not_issued" not in c.lower()]
tot=sum(float(r[col] or 0) for r in rows)
print("instructions",len(rows),"samples",tot)
# print consecutive listing compressed: groups of 12 instr with sample share
acc=0
for i,r in enumerate(rows):
    v=float(r[col] or 0)
    if v>tot*0.008:
        st=sorted(((float(r[j] or 0),header[j]) for j in stall),reverse=True)[:3]
        print(i, f"{100*v/tot:5.1f}%", r[src][:70], [f"{n[6:]}:{int(x)}" for x,n in st if x])
