import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';
import { RatchetError } from '../../core/errors.ts';
import { loadTokenizer } from '../../engine/index.ts';
import type { HoldOutcome, Inference, Sample, SampleRequest } from '../inference/index.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';
import { engineLogprobs, promptsOf, trainVersions, type VersionFolders } from './material.ts';

/** Optional abilities of an inference; the suite tests the promised ones. */
export interface InferencePromises {
  /** Equal seeds give equal tokens, whatever else is sampled at the time. */
  readonly seeds?: boolean;
  /** `score` answers. */
  readonly scores?: boolean;
  /** Result of `hold` for a version that the servers have loaded; `undefined` = no `hold`. */
  readonly holds?: HoldOutcome;
  /** Honours `topK` with vLLM's meaning. */
  readonly truncates?: boolean;
  /** Honours `stop`: texts that end a turn. */
  readonly stops?: boolean;
  /** `promptLogprobs` answers, so that the model may be a teacher. */
  readonly scoresPrompts?: boolean;
  /** The model's context limit in tokens: a longer prompt is `PromptTooLong`. */
  readonly contextTokens?: number;
  /** Supported temperatures beside greedy; 1 alone when left out. */
  readonly temperatures?: readonly number[];
  /** The embedded engine reads the folders of its versions, with equal logprobs. */
  readonly readsModels?: boolean;
}

export interface InferenceUnderTest {
  /** Two versions that differ; when left out they are trained from the 0.2 M parameter preset. */
  readonly versions?: (t: TestContext) => Promise<VersionFolders>;
  /** An inference over servers that may read below `root`. The suite closes it. */
  readonly open: (t: TestContext, folders: VersionFolders) => Promise<Inference>;
  readonly promises: InferencePromises;
  /** Largest deviation of logprobs from the embedded engine's, nats; 1e-3 when left out. */
  readonly tolerance?: number;
}

/** Contract of every inference (`backends/inference/types.ts`), as tests of `node:test`. */
export function inferenceContract(name: string, under: InferenceUnderTest): void {
  const { promises, tolerance = 1e-3 } = under;
  const { temperatures = [1] } = promises;

  async function begin(t: TestContext) {
    const folders = await (under.versions ?? trainVersions)(t);
    const inference = await under.open(t, folders);
    t.after(() => inference.close?.());
    const [first, second] = folders.versions;
    const prompts = await promptsOf(first.folder);
    const ask = (policy: ServedPolicy, more: Partial<SampleRequest> = {}): Promise<Sample> =>
      inference.sample({ policy, promptTokenIds: prompts[0]!, maxTokens: 8, temperature: 1, seed: 1, ...more });
    const each = (policy: ServedPolicy, more: Partial<SampleRequest> = {}): Promise<Sample[]> =>
      Promise.all(prompts.map((promptTokenIds, seed) => ask(policy, { promptTokenIds, seed, ...more })));
    return { inference, first, second, prompts, ask, each };
  }

  describe(`${name} keeps the promises of an inference`, () => {
    test('a sample is token ids, each with its logprob, and says how it ended', async (t) => {
      const { inference, first, each } = await begin(t);
      await inference.bringTo(first);
      const samples = await each(first, { maxTokens: 3 });
      for (const { tokenIds, logprobs, finishReason } of samples) {
        assert.ok(tokenIds.length >= 1 && tokenIds.length <= 3, `${tokenIds.length} tokens of 3 at most`);
        assert.ok(tokenIds.every((id) => Number.isInteger(id) && id >= 0));
        assert.ok(logprobs, 'they are the policy’s where nothing changes the distribution');
        assert.equal(logprobs.length, tokenIds.length);
        for (const logprob of logprobs) assert.ok(Number.isFinite(logprob) && logprob <= 1e-4, String(logprob));
        assert.ok(finishReason === 'stop' || tokenIds.length === 3, 'what ends before its limit has stopped');
      }
      assert.ok(new Set(samples.map(({ tokenIds }) => tokenIds.join())).size > 1, 'they are not all the same');
    });

    for (const temperature of temperatures) {
      test(`at temperature ${temperature} its logprobs are those of the version’s weights`, async (t) => {
        if (!promises.readsModels) return t.skip('its versions are not files that the embedded engine reads');
        const { inference, first, prompts, each } = await begin(t);
        await inference.bringTo(first);
        await requireOf(first, prompts, await each(first, { temperature }), temperature);
      });
    }

    test('a request names its version: whichever the servers were brought to last, the one that is named answers', async (t) => {
      const { inference, first, second, prompts, each } = await begin(t);
      await inference.bringTo(first);
      await inference.bringTo(second);
      for (const policy of [second, first, second]) {
        const samples = await each(policy);
        if (promises.readsModels) await requireOf(policy, prompts, samples, 1);
      }
      const [a, b] = await Promise.all([each(first, { temperature: 0 }), each(second, { temperature: 0 })]);
      assert.notDeepEqual(idsOf(a), idsOf(b), 'the two versions answer differently');
    });

    test('servers may be brought to a version twice, and at the same time', async (t) => {
      const { inference, first, ask } = await begin(t);
      await Promise.all([inference.bringTo(first), inference.bringTo(first)]);
      await inference.bringTo(first);
      assert.ok((await ask(first)).tokenIds.length > 0);
    });

    test('at temperature 0 the likeliest tokens are given, whatever the seed', async (t) => {
      const { inference, first, each } = await begin(t);
      await inference.bringTo(first);
      const [one, other] = [
        await each(first, { temperature: 0, seed: 1 }),
        await each(first, { temperature: 0, seed: 2 }),
      ];
      assert.deepEqual(idsOf(one), idsOf(other));
    });

    test('a turn’s tokens are those of its seed, alone or beside others', async (t) => {
      if (!promises.seeds) return t.skip('it does not promise to follow seeds');
      const { inference, first, prompts, ask, each } = await begin(t);
      await inference.bringTo(first);
      const together = await each(first);
      const last = prompts.length - 1;
      const alone = await ask(first, { promptTokenIds: prompts[last]!, seed: last });
      assert.deepEqual(alone.tokenIds, together[last]!.tokenIds);
      assert.deepEqual(idsOf(await each(first)), idsOf(together));
    });

    test('drawn from one token, the answer is the greedy one', async (t) => {
      if (!promises.truncates) return t.skip('it does not promise to cut distributions');
      const { inference, first, each } = await begin(t);
      await inference.bringTo(first);
      assert.deepEqual(idsOf(await each(first, { topK: 1 })), idsOf(await each(first, { temperature: 0 })));
    });

    test('a stop text ends a turn', async (t) => {
      if (!promises.stops) return t.skip('it does not promise stop texts');
      const { inference, first, ask } = await begin(t);
      await inference.bringTo(first);
      const tokenizer = await loadTokenizer(first.folder);
      const whole = await ask(first, { temperature: 0 });
      const [stop] = tokenizer.decode(whole.tokenIds);
      assert.ok(stop !== undefined, 'the version says something');
      const { tokenIds, finishReason } = await ask(first, { temperature: 0, stop: [stop] });
      assert.equal(finishReason, 'stop');
      assert.ok(tokenIds.length < whole.tokenIds.length || whole.tokenIds.length === 1);
    });

    test('what it scores is what it would have sampled with', async (t) => {
      if (!promises.scores) return t.skip('it does not promise scores');
      const { inference, second, prompts, ask } = await begin(t);
      await inference.bringTo(second);
      const sample = await ask(second);
      const positions = sample.tokenIds.map((_, i) => prompts[0]!.length + i);
      const tokenIds = [...prompts[0]!, ...sample.tokenIds];
      const scores = await inference.score!({ policy: second, tokenIds, positions });
      assert.ok(scores, 'it answers');
      scores.forEach((score, i) => assert.ok(Math.abs(score - sample.logprobs![i]!) <= tolerance, `token ${i}`));
    });

    test('what it says of whole prompts is what their weights say', async (t) => {
      if (!promises.scoresPrompts) return t.skip('it does not promise to score prompts');
      const { inference, second, prompts } = await begin(t);
      await inference.bringTo(second);
      const told = await inference.promptLogprobs!({ policy: second, prompts });
      const rows = prompts.map((tokenIds) => ({ tokenIds, lossMask: tokenIds.map((_, i) => Number(i > 0)) }));
      const expected = await engineLogprobs(second.folder, rows, 1);
      assert.deepEqual(
        told.map(({ length }) => length),
        prompts.map(({ length }) => length),
      );
      const off = Math.max(...told.flatMap((row, r) => row.map((logprob, i) => Math.abs(logprob - expected[r]![i]!))));
      assert.ok(off <= tolerance, `${off} off`);
    });

    test('a version is held for whoever asks, and let go of', async (t) => {
      if (promises.holds === undefined) return t.skip('it has no hold');
      const { inference, first, second, ask } = await begin(t);
      await inference.bringTo(first);
      assert.equal(await inference.hold!(first, 'contract', 30), promises.holds);
      await inference.bringTo(second);
      assert.ok((await ask(first)).tokenIds.length > 0);
      await inference.release?.(first, 'contract');
      await inference.release?.(first, 'contract');
    });

    test('a prompt that is too long is PromptTooLong, which is of this prompt alone', async (t) => {
      const { contextTokens } = promises;
      if (contextTokens === undefined) return t.skip('it names no limit');
      const { inference, first, prompts, ask } = await begin(t);
      await inference.bringTo(first);
      const promptTokenIds = Array.from({ length: contextTokens + 1 }, (_, i) => prompts[0]![i % prompts[0]!.length]!);
      await assert.rejects(ask(first, { promptTokenIds }), isCoded('PromptTooLong'));
      assert.ok((await ask(first)).tokenIds.length > 0);
    });

    test('what is no longer wanted is not waited for', async (t) => {
      const { inference, first, ask } = await begin(t);
      await inference.bringTo(first);
      await assert.rejects(ask(first, { signal: AbortSignal.abort(new Error('no longer wanted')) }));
    });
  });

  async function requireOf(
    policy: ServedPolicy,
    prompts: readonly (readonly number[])[],
    samples: readonly Sample[],
    temperature: number,
  ): Promise<void> {
    const rows = samples.map(({ tokenIds }, i) => ({
      tokenIds: [...prompts[i]!, ...tokenIds],
      lossMask: [...prompts[i]!.map(() => 0), ...tokenIds.map(() => 1)],
    }));
    const expected = await engineLogprobs(policy.folder, rows, temperature);
    samples.forEach(({ logprobs }, i) =>
      logprobs!.forEach((logprob, t) => {
        const off = Math.abs(logprob - expected[i]![prompts[i]!.length + t]!);
        assert.ok(off <= tolerance, `${policy.name}, answer ${i}, token ${t}: ${off} off`);
      }),
    );
  }
}

const idsOf = (samples: readonly Sample[]) => samples.map(({ tokenIds }) => tokenIds);

const isCoded = (code: RatchetError['code']) => (error: unknown) => {
  assert(error instanceof RatchetError, `expected a RatchetError, got ${String(error)}`);
  assert.equal(error.code, code, error.message);
  return true;
};
