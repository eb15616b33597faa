import { condition } from '@temporalio/workflow';

interface Turn {
  readonly groups: number;
  isLetIn: boolean;
}

export interface GateRoom {
  /** Most groups under way, if there are more chunks than `chunks`. */
  readonly groups: number;
  /** Chunks that begin in any case. */
  readonly chunks: number;
}

/**
 * Chunks of a round that wait for room: a worker takes all that it is offered, and those beyond `max_concurrent` would
 * wait there while another worker has nothing to do.
 */
export class ChunkGate {
  #groups = 0;
  #chunks = 0;
  #waiting: Turn[] = [];

  /** Plays a chunk when there is room for its groups, or for a chunk. */
  async within<T>(groups: number, room: () => GateRoom, play: () => Promise<T>): Promise<T> {
    const turn: Turn = { groups, isLetIn: false };
    this.#waiting.push(turn);
    this.#letIn(room());
    try {
      if (!turn.isLetIn) await condition(() => turn.isLetIn);
      return await play();
    } finally {
      if (turn.isLetIn) {
        this.#groups -= groups;
        this.#chunks -= 1;
      } else this.#waiting = this.#waiting.filter((one) => one !== turn);
      this.#letIn(room());
    }
  }

  #letIn({ groups, chunks }: GateRoom): void {
    for (;;) {
      const [next] = this.#waiting;
      const isFull = this.#chunks >= chunks && this.#groups + (next?.groups ?? 0) > groups;
      if (next === undefined || isFull) return;
      this.#waiting.shift();
      this.#groups += next.groups;
      this.#chunks += 1;
      next.isLetIn = true;
    }
  }
}
