import type { RunSpec } from '../config/run-spec.ts';
import { groupSizeOf } from '../core/rl/learning/selection.ts';
import { rolloutsAtOnce, roomKept } from '../core/rl/sampling/chunks.ts';
import type { ChunkInput } from './chunk-play.ts';
import { type Room, type Slots, slotsOf, workerSlots } from './slots.ts';

type Shared = Pick<ChunkInput, 'run' | 'workers'>;

interface Coming {
  readonly rollouts: number;
}

/** Chunks that have come to this process and have not asked for slots yet, by run, in the order of their coming. */
const coming = new Map<string, readonly Coming[]>();

/** A chunk that has come to this process. */
export interface EnteredChunk {
  /** Whether all of its rollouts can begin at once beside the others of its run here; true for the only one. */
  readonly fits: boolean;
  /** Whether one of its rollouts can begin now. */
  hasRoom(): boolean;
  /** Its rollouts have asked for slots, or it is not played here. Idempotent. */
  begun(): void;
}

/** Slots that a run has in this process. */
export function roomOfRun({ run, workers = 1 }: Shared, spec: RunSpec): Slots {
  const atOnce = rolloutsAtOnce(spec, workers);
  return slotsOf(nameOf(run), atOnce, roomKept(spec, atOnce));
}

/** The slots that a chunk's rollouts take, and what ends its lease of `rollouts` of them. */
export function leaseRoom(
  input: Shared & Pick<ChunkInput, 'chunk'>,
  spec: RunSpec,
  rollouts: number,
): { readonly room: Room; readonly leave: () => void } {
  const { environment } = input.chunk;
  const ofRun = roomOfRun(input, spec);
  return { room: environment === undefined ? ofRun : ofRun.of(environment), leave: workerSlots.enter(rollouts) };
}

/** Counts the rollouts of a chunk until they ask for slots. */
export function enterChunk({ chunk, ...input }: Shared & Pick<ChunkInput, 'chunk'>, spec: RunSpec): EnteredChunk {
  const run = nameOf(input.run);
  const room = roomOfRun(input, spec);
  const mine: Coming = { rollouts: (chunk.groups ?? 1) * groupSizeOf(spec, chunk.environment ?? '') };
  coming.set(run, [...(coming.get(run) ?? []), mine]);
  const ahead = (): number => {
    const all = coming.get(run) ?? [];
    return all.slice(0, all.indexOf(mine)).reduce((sum, { rollouts }) => sum + rollouts, room.wanted);
  };
  const others = ahead();
  return {
    fits: others === 0 || others + mine.rollouts <= room.limit,
    hasRoom: () => ahead() < room.limit,
    begun() {
      const left = (coming.get(run) ?? []).filter((one) => one !== mine);
      if (left.length === 0) coming.delete(run);
      else coming.set(run, left);
    },
  };
}

function nameOf({ store, name }: ChunkInput['run']): string {
  return `${store}/${name}`;
}
