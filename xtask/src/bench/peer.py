"""`replay TRACE POLICY BLOCKS`: libCacheSim on a trace; `run COMMAND...`: a command that prints JSON.

How: `replay` takes times from opening the trace to its last request, without Python's own start;
memory is what the process holds anonymously in the end and did not before, so that the mapped trace
does not count; every object counts as one block. `run` adds the processor time of the whole command
to what that printed.
"""

import json
import resource
import subprocess
import sys
import time

import libcachesim


def anonymous_bytes():
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def replay(trace, policy, blocks):
    before, start, start_cpu = anonymous_bytes(), time.perf_counter(), time.process_time()
    reader = libcachesim.TraceReader(
        trace=trace,
        trace_type=libcachesim.TraceType.ORACLE_GENERAL_TRACE,
        reader_init_params=libcachesim.ReaderInitParam(ignore_obj_size=True),
    )
    cache = getattr(libcachesim, policy)(int(blocks))
    miss_ratio, _ = cache.process_trace(reader)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    requests = reader.get_num_of_req()
    return {
        "requests": requests,
        "hits": round(requests * (1 - miss_ratio)),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "memory_bytes": anonymous_bytes() - before,
    }


def run(*command):
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return json.loads(printed) | {"cpu_seconds": used.ru_utime + used.ru_stime}


word, *words = sys.argv[1:]
print(json.dumps({"replay": replay, "run": run}[word](*words)))
