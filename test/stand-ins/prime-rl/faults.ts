import { existsSync, readFileSync, writeFileSync } from 'node:fs';

/** Deaths that a test plans, in the file that STAND_IN_FAULTS names: each happens once, over all starts. */
export interface PlannedFault {
  readonly step: number;
  /** The gap in which it happens, named after what has happened. */
  readonly after: 'read' | 'backward' | 'optimizer' | 'weights' | 'marker' | 'shards' | 'checkpoint' | 'metrics';
  /** 'hang' stops answering. */
  readonly kill: 'rank' | 'launcher' | 'both' | 'hang';
}

export async function passGap(step: number, after: PlannedFault['after']): Promise<void> {
  const file = process.env['STAND_IN_FAULTS'];
  if (file === undefined || !existsSync(file)) return;
  const plan = JSON.parse(readFileSync(file, 'utf8')) as PlannedFault[];
  for (const [i, fault] of plan.entries()) {
    const fired = `${file}.${i}.fired`;
    if (fault.step !== step || fault.after !== after || existsSync(fired)) continue;
    writeFileSync(fired, String(process.pid));
    if (fault.kill === 'hang') await new Promise(() => setInterval(() => undefined, 1_000));
    if (fault.kill !== 'rank') process.kill(process.ppid, 'SIGKILL');
    if (fault.kill !== 'launcher') process.kill(process.pid, 'SIGKILL');
  }
}
