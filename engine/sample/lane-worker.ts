/** The entry of a worker thread that decodes for a sampler in another thread. */
import assert from 'node:assert/strict';
import { parentPort, workerData } from 'node:worker_threads';
import { Parameters } from '../model/parameters.ts';
import { DecodeLane, type LaneEvents } from './decode-lane.ts';
import type { FromWorker, Stepped, ToWorker, WorkerSettings } from './lane-protocol.ts';
import type { Choice } from './token-choice.ts';

assert(parentPort, 'lane-worker.ts is the entry of a worker thread');
const port = parentPort;
const { config, options } = workerData as WorkerSettings;
const versions = new Map<number, Parameters>();
const lane = await DecodeLane.open(config, options, postedEvents());
port.on('message', (message: ToWorker) => void receive(message));
post({ kind: 'opened' });

async function receive(message: ToWorker): Promise<void> {
  switch (message.kind) {
    case 'weights':
      versions.set(message.version, new Parameters(config, message.flat));
      return;
    case 'submit': {
      const parameters = versions.get(message.version);
      assert(parameters, `the weights of version ${message.version} came before its rows`);
      lane.submit(message.version, parameters, message.rows);
      return;
    }
    case 'forget':
      versions.delete(message.version);
      if (message.prompts) lane.forget(message.version);
      return;
    case 'drop':
      lane.drop(message.ids);
      return;
    case 'close':
      await lane.close();
      post({ kind: 'closed' });
      port.close();
      return;
    default:
      message satisfies never;
  }
}

/** Collects what happens in a step and posts it as one message. */
function postedEvents(): LaneEvents {
  let tokens: { id: number; choice: Choice }[] = [];
  let failures: Stepped['failures'][number][] = [];
  return {
    token: (id, choice) => tokens.push({ id, choice }),
    fail: (ids, error) => failures.push({ ids, error }),
    stepped: (ends, counters) => {
      post({
        kind: 'stepped',
        ids: tokens.map(({ id }) => id),
        tokenIds: Int32Array.from(tokens, ({ choice }) => choice.tokenId),
        logprobs: Float32Array.from(tokens, ({ choice }) => choice.logprob),
        samplingLogprobs: Float32Array.from(tokens, ({ choice }) => choice.samplingLogprob),
        ends,
        failures,
        counters,
      });
      tokens = [];
      failures = [];
    },
  };
}

function post(message: FromWorker): void {
  port.postMessage(message);
}
