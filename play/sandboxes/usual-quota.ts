import { availableParallelism, totalmem } from 'node:os';

interface Machine {
  readonly cores: number;
  readonly memoryMb: number;
}

/** Programs of agents wait for their model most of the time. */
const perCore = 8;
/** The rest is for the workers, and for the model. */
const memoryShare = 0.75;

/** Sandboxes at once on this machine where the file names no quota: as many as its cores and its memory bear. */
export function usualQuota(memoryMb: number, { cores, memoryMb: all }: Machine = thisMachine()): number {
  return Math.max(1, Math.min(perCore * cores, Math.floor((all * memoryShare) / memoryMb)));
}

function thisMachine(): Machine {
  const constrained = process.constrainedMemory(); // 0, or more than there is, where nothing is
  const bytes = constrained > 0 ? Math.min(constrained, totalmem()) : totalmem();
  return { cores: availableParallelism(), memoryMb: bytes / 2 ** 20 };
}
