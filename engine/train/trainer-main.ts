/** Entry of a trainer's process. It lives as long as its IPC channel: when the owner exits, so does the trainer. */
import type { MaskedSample, RowSource } from '../../core/rl/learning/batch.ts';
import { EngineOptimizer } from './optimizer.ts';
import {
  areRemote,
  fromWire,
  type OpenArguments,
  type RemoteRows,
  type RowsAnswer,
  type RowsRequest,
  toWire,
  type TrainerCall,
  type TrainerReply,
} from './trainer-protocol.ts';

let trainer: EngineOptimizer | null = null;

// Ctrl-C in a terminal reaches the whole process group; the owner decides when training ends.
process.on('SIGINT', () => undefined);
process.on('disconnect', () => process.exit(0));
process.on('message', (message: TrainerCall | RowsAnswer) => {
  if ('ask' in message) taken(message);
  else void answer(message);
});

const asked = new Map<number, (answer: RowsAnswer) => void>();
let asks = 0;

function taken(answer: RowsAnswer): void {
  asked.get(answer.ask)?.(answer);
  asked.delete(answer.ask);
}

/** Rows that stay with the owner and are requested when needed. */
function remoteRows({ rowsOfCall, rows }: RemoteRows): RowSource<MaskedSample> {
  return {
    rows,
    async read(places) {
      const ask = asks++;
      const request: RowsRequest = { ask, rowsOfCall, places };
      const answer = await new Promise<RowsAnswer>((resolve) => {
        asked.set(ask, resolve);
        process.send?.(request);
      });
      if ('error' in answer) throw fromWire(answer.error);
      return answer.samples;
    },
  };
}

async function answer(call: TrainerCall): Promise<void> {
  const reply: TrainerReply = await perform(call).then(
    (result) => ({ id: call.id, result }),
    (error: unknown) => ({ id: call.id, error: toWire(error) }),
  );
  process.send?.(reply);
}

async function perform({ method, args }: TrainerCall): Promise<unknown> {
  if (method === 'open') {
    const { model, options } = args[0] as OpenArguments;
    trainer = await EngineOptimizer.open(model, options);
    return undefined;
  }
  if (!trainer) throw new Error(`${method} was called before the trainer was opened`);
  // The owner is the same program: types were checked at the call.
  const call = trainer[method].bind(trainer) as (...args: readonly unknown[]) => Promise<unknown>;
  return call(...args.map((value) => (areRemote(value) ? remoteRows(value) : value)));
}
