import { readdirSync, readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import type { Bench } from './measurement.ts';
import { round } from './statistics.ts';

/** CPU seconds while something was measured: a pair of runs that had different company is no pair. */
export interface CpuUse {
  readonly wall_s: number;
  /** CPU seconds of this process and all below it. */
  readonly own_s: number;
  /**
   * CPU seconds of everything else on the machine, including our own processes that lived for less than half a second.
   */
  readonly others_s: number;
}

const intervalMs = 500;
/** Linux reports CPU time to programs in hundredths of a second, whatever its own clock. */
export const ticksPerSecond = 100;

/** Reads the meter beside `work`. null where there is no /proc. */
export async function meterCpu<T>(work: () => Promise<T>): Promise<{ result: T; cpu: CpuUse | null }> {
  if (process.platform !== 'linux') return { result: await work(), cpu: null };
  const own = new Map<string, number>();
  const read = (): { busy: number; own: number } => {
    for (const [name, ticks] of familyTicks(process.pid)) own.set(name, ticks);
    return { busy: busyTicks(readFileSync('/proc/stat', 'utf8')), own: sum(own.values()) };
  };
  const before = read();
  const startedAt = performance.now();
  const timer = setInterval(read, intervalMs);
  try {
    const result = await work();
    const after = read();
    const ownTicks = after.own - before.own;
    const othersTicks = Math.max(0, after.busy - before.busy - ownTicks);
    const wall_s = round((performance.now() - startedAt) / 1000, 2);
    return { result, cpu: { wall_s, own_s: ownTicks / ticksPerSecond, others_s: othersTicks / ticksPerSecond } };
  } finally {
    clearInterval(timer);
  }
}

/** Others may take this share of the machine before a figure says less about us than about them. */
const quietShare = 0.05;

export function isDisturbed(cpu: CpuUse | null): boolean {
  return cpu !== null && cpu.others_s > quietShare * cpu.wall_s * availableParallelism();
}

/** Waits until others leave the machine alone for three seconds, but no longer than `patience_s`; says which it was. */
export async function waitForQuiet(bench: Bench, patience_s: number): Promise<void> {
  const giveUpAt = performance.now() + patience_s * 1000;
  for (;;) {
    const { cpu } = await meterCpu(() => delay(3_000, undefined, { signal: bench.signal }));
    if (!isDisturbed(cpu)) return;
    if (performance.now() > giveUpAt)
      return bench.say(`the machine is not quiet: others used ${cpu?.others_s} s in 3 s`);
  }
}

/** All but idle and waiting for disks, of all processors together. */
export function busyTicks(stat: string): number {
  const [user, nice, system, , , irq, softirq, steal] = stat.split('\n', 1)[0]!.split(/\s+/).slice(1).map(Number);
  return sum([user!, nice!, system!, irq!, softirq!, steal!]);
}

/** CPU seconds of a process and of all below it that live. */
export function cpuSecondsOf(root: number): number {
  return sum(familyTicks(root).values()) / ticksPerSecond;
}

/** CPU time of a process and its descendants. The start time is part of the name, because process ids come again. */
function familyTicks(root: number): Map<string, number> {
  const processes = readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(readProcess)
    .filter((found) => found !== null);
  const family = new Set([root]);
  for (let grown = 0; grown !== family.size;) {
    grown = family.size;
    for (const { pid, parent } of processes) if (family.has(parent)) family.add(pid);
  }
  return new Map(
    processes.filter(({ pid }) => family.has(pid)).map(({ pid, startedAt, ticks }) => [`${pid} ${startedAt}`, ticks]),
  );
}

function readProcess(name: string): { pid: number; parent: number; startedAt: string; ticks: number } | null {
  try {
    // The second field is the program's name in parentheses, which may hold anything.
    const text = readFileSync(`/proc/${name}/stat`, 'utf8');
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
    return {
      pid: Number(name),
      parent: Number(fields[1]),
      startedAt: fields[19]!,
      ticks: Number(fields[11]) + Number(fields[12]),
    };
  } catch {
    return null; // it ended meanwhile
  }
}

function sum(values: Iterable<number>): number {
  let total = 0;
  for (const value of values) total += value;
  return total;
}
