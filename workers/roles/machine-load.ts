import { readFileSync } from 'node:fs';
import os from 'node:os';

/** Shares of the machine, or of the container, that are in use: from 0 to 1. */
export interface Load {
  readonly cpu: number;
  readonly memory: number;
}

/** Shorter windows show single garbage collections. */
const windowMs = 500;

interface Sources {
  /** Time of all processors so far, and the part of it in which they were busy. */
  readonly processors: () => { readonly busy: number; readonly all: number };
  /** Of this container: its processor seconds so far, and how many processors it may use; null without a limit. */
  readonly container: () => { readonly seconds: number; readonly processors: number } | null;
  readonly memory: () => number;
  readonly now: () => number;
}

/** Measures over the time since the last look, at least {@link windowMs}: what is asked in between gets the same answer. */
export class MachineLoad {
  readonly #sources: Sources;
  #last: Sample;
  #cpu = 0;

  constructor(sources: Sources = thisMachine) {
    this.#sources = sources;
    this.#last = sampleOf(sources);
  }

  read(): Load {
    if (this.#sources.now() - this.#last.at >= windowMs) {
      const now = sampleOf(this.#sources);
      this.#cpu = Math.max(shareOfMachine(this.#last, now), shareOfContainer(this.#last, now));
      this.#last = now;
    }
    return { cpu: this.#cpu, memory: this.#sources.memory() };
  }
}

interface Sample {
  readonly at: number;
  readonly processors: ReturnType<Sources['processors']>;
  readonly container: ReturnType<Sources['container']>;
}

function sampleOf({ now, processors, container }: Sources): Sample {
  return { at: now(), processors: processors(), container: container() };
}

function shareOfMachine(from: Sample, to: Sample): number {
  const all = to.processors.all - from.processors.all;
  return all <= 0 ? 0 : (to.processors.busy - from.processors.busy) / all;
}

function shareOfContainer(from: Sample, to: Sample): number {
  if (from.container === null || to.container === null) return 0;
  const seconds = (to.at - from.at) / 1000;
  return (to.container.seconds - from.container.seconds) / (seconds * to.container.processors);
}

const thisMachine: Sources = {
  processors() {
    const times = os.cpus().map((one) => one.times);
    const busy = times.reduce((sum, { user, nice, sys, irq }) => sum + user + nice + sys + irq, 0);
    return { busy, all: times.reduce((sum, { idle }) => sum + idle, busy) };
  },
  container: () => containerOf((file) => readFileSync(`/sys/fs/cgroup/${file}`, 'utf8')),
  memory() {
    const limit = process.constrainedMemory();
    const all = limit > 0 && limit < os.totalmem() ? limit : os.totalmem();
    return 1 - process.availableMemory() / all;
  },
  now: () => performance.now(),
};

/** Of control groups, version 2. */
export function containerOf(read: (file: string) => string): ReturnType<Sources['container']> {
  try {
    const [quota, period] = read('cpu.max').trim().split(' ').map(Number);
    const used = /^usage_usec (\d+)/m.exec(read('cpu.stat'))?.[1];
    if (!Number.isFinite(quota) || !period || used === undefined) return null;
    return { seconds: Number(used) / 1e6, processors: quota! / period };
  } catch {
    return null; // the root group has no limit, and other systems have no groups
  }
}
