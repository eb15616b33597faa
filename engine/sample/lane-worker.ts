/** The entry of a worker thread that decodes for a sampler in another thread. */
import assert from 'node:assert/strict';
import { parentPort, workerData } from 'node:worker_threads';
import { RatchetError } from '../../core/errors.ts';
import { type Feeds, InferenceSession } from '../onnx/runtime.ts';
import type { DecodeSessions } from './decode-batch.ts';
import { DecodeLane, type LaneEvents } from './decode-lane.ts';
import type {
  FromWorker,
  LaneFailure,
  SharedTensors,
  SharedVersion,
  ToWorker,
  WorkerSettings,
} from './lane-protocol.ts';

assert(parentPort, 'lane-worker.ts is the entry of a worker thread');
const port = parentPort;
const { config, options } = workerData as WorkerSettings;
const program = { use: async (_: number, sessions: DecodeSessions) => sessions, done: () => undefined };
const lane = new DecodeLane<DecodeSessions>(config, program, options, postedEvents());
let submits = 0;
port.on('message', (message: ToWorker) => void receive(message));
post({ kind: 'opened' });

async function receive(message: ToWorker): Promise<void> {
  switch (message.kind) {
    case 'submit':
      submits++;
      lane.submit(message.version, attached(message.shared), message.rows);
      return;
    case 'forget':
      lane.forget(message.version);
      return;
    case 'drop':
      lane.drop(message.ids);
      return;
    case 'close':
      await lane.close();
      port.close();
      return;
    default:
      message satisfies never;
  }
}

function feedsOf(tensors: SharedTensors): Feeds {
  return Object.fromEntries(Object.entries(tensors).map(([name, value]) => [name, { value }]));
}

function attached({ weights, prefill, step, rows, logits }: SharedVersion): DecodeSessions {
  return {
    weights: { prefill: feedsOf(weights.prefill), step: feedsOf(weights.step) },
    prefill: InferenceSession.attach(prefill),
    step: InferenceSession.attach(step),
    rows,
    logits,
  };
}

/**
 * Longest time that sampled tokens are held back to be sent together, unless a row ends: receiving a message costs more
 * than its content.
 */
const tokensHeldMs = 1;

/** Collects the events of one or a few steps and posts them as one message. */
function postedEvents(): LaneEvents {
  let tokens: number[] = [];
  let failures: LaneFailure[] = [];
  let postedAt = 0;
  return {
    token: (id, { tokenId, logprob, samplingLogprob }) => tokens.push(id, tokenId, logprob, samplingLogprob),
    fail: (ids, error) => failures.push({ ids, ...describe(error) }),
    stepped: (ends, counters) => {
      const { versions } = lane;
      const mayWait = ends.length === 0 && failures.length === 0 && versions.length > 0;
      if (mayWait && performance.now() < postedAt + tokensHeldMs) return;
      post({
        kind: 'stepped',
        tokens: new Float64Array(tokens),
        ends,
        failures,
        counters,
        submits,
        versions,
      });
      tokens = [];
      failures = [];
      postedAt = performance.now();
    },
  };
}

function describe(error: unknown): { code: LaneFailure['code']; message: string } {
  if (error instanceof RatchetError) return { code: error.code, message: error.message };
  return { code: null, message: error instanceof Error ? error.message : String(error) };
}

function post(message: FromWorker): void {
  port.postMessage(message);
}
