/** Versions on their way to the inference servers, and what their canaries said. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { Gate, holdingStep } from './fake-run.ts';
import { aWhile, failureOf } from './look.ts';
import { begin, closeServer } from './server.ts';

after(closeServer);

const drift = (server: string, difference: number) => ({ server, difference });

describe('served weights', { concurrency: 8 }, () => {
  test('a server that samples from other weights is put aside by name, and the others continue', async () => {
    const run = await begin({
      settings: { maxSteps: 1 },
      fakes: {
        broadcastWeights: async ({ policy }, { usual }) => ({
          ...(await usual()),
          canaryDifference: 0.0001,
          threshold: 0.001,
          ...(policy.step === 1 ? { quarantined: [drift('http://b', 0.5)] } : {}),
        }),
      },
    });
    await run.result();
    assert.deepEqual(await run.told('warning'), [
      "canary: http://b is quarantined: its logprobs of v1 are 5.0e-1 off the trainer's, expected 0.001 at most; the others continue",
    ]);
    assert.deepEqual((await run.status()).progress.quarantinedServers, ['http://b']);
    const { metrics } = run.fake.commits()[1]!;
    assert.deepEqual([metrics['inference/canary_difference'], metrics['inference/servers_quarantined']], [0.0001, 0]);
  });

  test('servers that keep versions hear of the end of a run, also of a cancelled one; those that do not answer are named', async () => {
    const settings = { maxSteps: 1, inference: { kind: 'vllm', url: 'http://v:8000', endpoints: null } as never };
    const ended = await begin({ settings });
    await ended.result();
    assert.equal(ended.inputs('leaveServers').length, 1);
    const gate = new Gate();
    const cancelled = await begin({ settings, fakes: holdingStep(gate) });
    await gate.reached;
    await cancelled.handle.cancel();
    await failureOf(cancelled.result());
    assert.equal(cancelled.inputs('leaveServers').length, 1);
    const silent = await begin({
      settings,
      fakes: {
        leaveServers: () => {
          throw new Error('nobody answers');
        },
      },
    });
    assert.equal((await silent.result()).step, 1);
    const { events } = await silent.ended();
    assert.equal(events.find(({ kind }) => kind === 'warning')?.text, 'versions of this run stay at the server at http://v:8000: nobody answers'); // prettier-ignore
    const other = await begin({ settings: { maxSteps: 1 } });
    await other.result();
    assert.equal(other.inputs('leaveServers').length, 0);
  });

  test('where no server is left the run pauses before anything is sampled there; resumed, they are asked again', async () => {
    const run = await begin({
      settings: { maxSteps: 1 },
      fakes: {
        broadcastWeights: async (_, { nth, usual }) => ({
          ...(await usual()),
          canaryDifference: nth === 1 ? 0.5 : 0,
          threshold: 0.001,
          ...(nth === 1 ? { isNoneLeft: true as const, quarantined: [drift('http://a', 0.5)] } : {}),
        }),
      },
    });
    assert.match(
      await run.paused(),
      /^canary: the logprobs of v0 at the policy servers are 5\.0e-1 off the trainer's, expected 0\.001 at most/,
    );
    assert.equal(run.inputs('leaseGroups').length, 0);
    await run.tell('resume');
    await run.result();
    assert.deepEqual(
      run.fake.served.map(({ step }) => step),
      [0, 0, 1],
    );
  });

  test('a server that agreed once it was given the weights again is told of', async () => {
    const run = await begin({
      settings: { maxSteps: 1 },
      fakes: {
        broadcastWeights: async ({ policy }, { usual }) => ({
          ...(await usual()),
          canaryDifference: 0,
          threshold: 0.001,
          ...(policy.step === 1 ? { reloaded: [drift('http://b', 0.00001)] } : {}),
        }),
      },
    });
    await run.result();
    assert.deepEqual(await run.told('warning'), [
      'canary: http://b sampled from other weights than v1; given them again it agrees (1.0e-5)',
    ]);
  });

  test('servers that hold one version are changed when the round under way is played to its end', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 2, maxAsyncLevel: 1 },
      fakes: {
        broadcastWeights: async (_, { usual }) => ({ ...(await usual()), holdsOne: true }),
        playGroups: async ({ round }, { usual }) => {
          if (round.step === 2) await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await run.atStep(1);
    await aWhile();
    assert.deepEqual(
      run.fake.served.map(({ step }) => step),
      [0],
      'v1 waits for the round of step 2',
    );
    gate.open();
    await run.result();
    assert.deepEqual(
      run.fake.served.map(({ step }) => step),
      [0, 1, 2],
    );
  });

  test('a vLLM with full weights changes them while rollouts of later steps are in play, unless that is not to be', async () => {
    const served = async (inflightUpdates: 'token' | 'turn'): Promise<number[]> => {
      const gate = new Gate();
      const run = await begin({
        settings: { maxSteps: 3, maxAsyncLevel: 2, inflightUpdates, inference: { kind: 'vllm' } as never },
        fakes: {
          broadcastWeights: async (_, { usual }) => ({ ...(await usual()), holdsOne: true }),
          playGroups: async ({ round }, { usual }) => {
            if (round.step === 3) await gate.pass();
            return usual();
          },
        },
      });
      await gate.reached;
      await run.atStep(1);
      await aWhile();
      const steps = run.fake.served.map(({ step }) => step);
      gate.open();
      await run.result();
      const takes = run.inputs('playGroups').map(({ takesNewest }) => takesNewest);
      assert.ok(takes.every((one) => one === true));
      assert.equal(run.inputs('broadcastWeights').at(-1)!.isForThoseInPlay, true);
      return steps;
    };
    const [inPlace, between] = await Promise.all([served('token'), served('turn')]);
    assert.ok(inPlace.includes(1), `v1 is served with a round in play: ${inPlace.join(', ')}`);
    assert.deepEqual(between, [0]);
  });

  test('servers that hold several are brought to the next version beside the round under way', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 2, maxAsyncLevel: 1 },
      fakes: {
        playGroups: async ({ round }, { usual }) => {
          if (round.step === 2) await gate.pass();
          return usual();
        },
        broadcastWeights: async ({ policy }, { usual }) => {
          if (policy.step === 1) gate.open();
          return usual();
        },
      },
    });
    await run.result();
    assert.deepEqual(
      run.fake.served.map(({ step }) => step),
      [0, 1, 2],
    );
  });

  test('a version is served only once it is in the store', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 1 },
      fakes: {
        publishVersion: async (_, { usual }) => {
          await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await aWhile();
    assert.deepEqual(
      run.fake.served.map(({ step }) => step),
      [0],
    );
    gate.open();
    await run.result();
    assert.deepEqual(
      run.fake.served.map(({ step }) => step),
      [0, 1],
    );
  });
});
