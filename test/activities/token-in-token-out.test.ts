import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { readRows, storeOf } from '../../runs/run-access.ts';
import { samplePolicy } from '../../play/policy/sample-policy.ts';
import { policyTokenizer } from '../../play/policy/policy-tokenizer.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import type { Inference, SampleRequest } from '../../backends/inference/index.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';
import { sha256 } from '../../store/file-store.ts';
import { putJson } from '../../store/objects.ts';
import { weightsFolder } from '../../store/weights-folder.ts';
import { layout } from '../../runs/layout.ts';
import { countFailures } from '../../core/rl/failures.ts';
import type { ScoredGroup, Turn } from '../../core/rl/rollout/rollout.ts';
import { initialCurriculum } from '../../core/rl/sampling/curriculum.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import {
  ChatTokenizer,
  ConversationPrompts,
  createPreset,
  loadTokenizer,
  presetFiles,
  type Rendering,
} from '../../engine/index.ts';
import { minuteOf } from '../../core/minute-of.ts';
import { present } from '../../core/present.ts';
import { act, commitFirst, makeRun, openRoles, sampleRound, type TestRun, WordsInference } from './runs.ts';

/** Groups of a round of step 1 as they were scored. */
async function scored(t: TestContext, more: Partial<RunSpec>, inference = new WordsInference()) {
  const test = await runWith(await makeRun(t), more);
  const roles = openRoles(inference);
  const { state } = await commitFirst(test, roles);
  const at = { step: 1, policy: state.policy, curriculum: initialCurriculum };
  const sampled = await sampleRound(test, roles, at);
  return { test, roles, ...sampled, groups: await readRows<ScoredGroup>(test.run, sampled.scored) };
}

describe('rollouts, token by token', () => {
  test('a server that gives no token ids has its rollouts rejected and counted, and none of them has a reward', async (t) => {
    class WithoutIds extends WordsInference {
      override async sample(request: SampleRequest) {
        return { ...(await super.sample(request)), tokenIds: undefined as unknown as number[] };
      }
    }
    const { groups } = await scored(t, {}, new WithoutIds());
    const rollouts = groups.flatMap((group) => group.rollouts);
    assert.ok(rollouts.every(({ outcome, reward }) => outcome === 'rejected' && reward === null));
    const { causes } = countFailures(groups);
    assert.equal(causes.rejected?.count, rollouts.length);
    assert.match(causes.rejected.first, /gave no token ids/);
  });

  test('each turn is kept with the version it began with, and the one it ended with where weights were exchanged in it', async (t) => {
    class Exchanging extends WordsInference {
      override async sample(request: SampleRequest) {
        return { ...(await super.sample(request)), servedStep: 1, servedThrough: 3 };
      }
    }
    const { groups } = await scored(t, {}, new Exchanging());
    const turns = groups.flatMap(({ rollouts }) => rollouts).flatMap((rollout) => rollout.turns);
    assert.ok(turns.length > 0 && turns.every((turn) => turn.policyStep === 1 && turn.policyStepEnd === 3));
    assert.ok(turns.every((turn) => !('servedStep' in turn || 'servedThrough' in turn)));
    assert.ok(
      groups.every(({ policyStep }) => policyStep === 0),
      'a group is as old as the version that it was leased with',
    );
  });

  test('a first prompt over max_prompt_len is not sampled: its rollout is an overlong_prompt', async (t) => {
    const inference = new WordsInference();
    const { groups } = await scored(t, { maxPromptTokens: 3 }, inference);
    assert.equal(inference.asked.length, 0);
    const { causes } = countFailures(groups);
    assert.equal(causes.overlong_prompt?.count, 8);
    assert.match(causes.overlong_prompt.first, /max_prompt_len is 3/);
  });

  test('filters flag rollouts when they are scored, and take their loss where they are enforced', async (t) => {
    const post = [{ type: 'gibberish' as const, enforce: true, tokenIdThreshold: 7, logprobOffset: 0 }];
    class Unlikely extends WordsInference {
      override async sample(request: SampleRequest) {
        const sample = await super.sample(request);
        return { ...sample, logprobs: sample.tokenIds.map((id) => -id) };
      }
    }
    const sampled = await scored(t, { rolloutFilters: { pre: [], post } }, new Unlikely());
    const { test, roles, scored: ref, groups } = sampled;
    const rollouts = groups.flatMap((group) => group.rollouts);
    const base = await test.store.read('weights/step_0/config.json');
    const { vocab_size: size } = JSON.parse(Buffer.from(base!).toString()) as { vocab_size: number };
    const isFlagged = ({ turns }: { turns: readonly Turn[] }): boolean =>
      turns.some(({ tokenIds }) => tokenIds.some((id) => id > 7 && -id < -Math.log(size)));
    const flagged = rollouts.filter(({ flags }) => flags !== undefined);
    assert.deepEqual(flagged, rollouts.filter(isFlagged));
    assert.ok(flagged.length > 0 && flagged.length < rollouts.length, `${flagged.length} of ${rollouts.length}`);
    const trained = [{ scored: ref, policyStep: 0, ordinals: '1-2' }];
    const { packed, rows } = await roles.packBatch({ run: test.run, step: 1, trained, scored: [ref] });
    const { metrics } = JSON.parse(await readFile(path.join(test.folder, packed.key), 'utf8')) as {
      metrics: Record<string, number>;
    };
    assert.equal(metrics['filter/gibberish_count'], flagged.length);
    assert.equal(rows, rollouts.length - flagged.length);
  });

  test('a rollout that continues after a crash asks with the very tokens it had', async () => {
    const { tokenizer } = createPreset('preset:chars-0.4m', { seed: 0 });
    const asked: (readonly number[])[] = [];
    const inference: Pick<Inference, 'sample'> = {
      sample({ promptTokenIds }) {
        asked.push(promptTokenIds);
        const tokenIds = tokenizer.encode('ab<eos>');
        return Promise.resolve({ tokenIds, logprobs: tokenIds.map(() => -1), finishReason: 'stop' });
      },
    };
    const sampling = { maxTokens: 9, temperature: 1, stop: [], templateArguments: {} };
    const open = (recorded: readonly Turn[]) =>
      samplePolicy(
        {
          inference,
          tokenizer,
          served: { version: { step: 0 } } as ServedPolicy,
          sampling: sampling as never,
          recorded,
        },
        () => 0,
      );
    const play = async (policy: ReturnType<typeof open>) => {
      const first = await policy.sample([{ role: 'user', content: 'a' }]);
      return policy.sample([
        { role: 'user', content: 'a' },
        { role: 'assistant', content: first.text },
        { role: 'user', content: 'b' },
      ]);
    };
    const whole = open([]);
    const last = await play(whole);
    const again = open(whole.turns.slice(0, 1));
    assert.deepEqual((await play(again)).promptTokenIds, last.promptTokenIds);
    assert.equal(asked.length, 3, 'the recorded turn is not sampled again');
    const before = [...whole.turns[0]!.promptTokenIds, ...whole.turns[0]!.tokenIds];
    assert.deepEqual(last.promptTokenIds.slice(0, before.length), before);
  });

  test('an answer takes what its prompt leaves of the context, where that is the limit', async () => {
    const { tokenizer } = createPreset('preset:chars-0.4m', { seed: 0 });
    const asked: SampleRequest[] = [];
    const inference: Pick<Inference, 'sample'> = {
      sample: (request) => {
        asked.push(request);
        return Promise.resolve({ tokenIds: [1], logprobs: [-1], finishReason: 'stop' });
      },
    };
    const limitOf = async (contextTokens?: number): Promise<number> => {
      const sampling = { maxTokens: 40, contextTokens, temperature: 1, stop: [], templateArguments: {} };
      const served = { version: { step: 0 } } as ServedPolicy;
      const policy = samplePolicy({ inference, tokenizer, served, sampling: sampling as never }, () => 0);
      await policy.sample([{ role: 'user', content: 'abc' }]);
      return asked.at(-1)!.maxTokens;
    };
    const plain = await limitOf();
    const prompt = asked[0]!.promptTokenIds.length;
    assert.deepEqual([plain, await limitOf(prompt + 100), await limitOf(prompt + 7)], [40, 40, 7]);
    assert.equal(await limitOf(prompt), 1, 'the server refuses that in its own words');
    assert.ok(!('contextTokens' in asked.at(-1)!));
  });
});

const template = `{%- for m in messages -%}{{ '<bos>' + m.content + '<sep>' }}{%- endfor -%}`;
const config = `model = "preset:reverse-text-0.2m"\nbatch_size = 8\nrollouts_per_example = 4\n[[env]]\nid = "reverse-text"\n[tokenizer]\nchat_template = "./own.jinja"\n`;

describe('a chat template of the config’s own', () => {
  test('is read at the door and stored with the run; a file that changes later changes nothing', async (t) => {
    const folder = await folderWith(t, { 'run.toml': config, 'own.jinja': template });
    const load = (run?: string) => loadRunConfig('run.toml', { projectFolder: folder, ...(run && { run }) });
    const first = await load();
    assert.deepEqual(first.spec.chatTemplate, {
      path: path.join(folder, 'own.jinja'),
      sha256: sha256(Buffer.from(template)),
    });
    const { openRun } = openRoles(undefined, { projectFolder: folder });
    const opened = await openRun('run.toml', 'words', 'e1');
    await writeFile(path.join(folder, 'own.jinja'), `{{ 'another one' }}`);
    const changed = await load();
    assert.deepEqual([changed.spec.chatTemplate, changed.chatTemplate], [first.spec.chatTemplate, null]);
    assert.match(changed.warnings.join('\n'), /chat_template has changed since this run began/);
    assert.deepEqual((await openRun('run.toml', 'words', 'e2')).spec, opened.spec);
    const kept = await readFile(path.join(folder, 'outputs/run', layout.chatTemplate()), 'utf8');
    assert.equal(kept, template);
    await rm(path.join(folder, 'own.jinja'));
    await assert.rejects(load('another'), /there is no such file/);
  });

  test('may be written into the config, and is refused where it is none', async (t) => {
    const written = (text: string) => config.replace('"./own.jinja"', JSON.stringify(text));
    const folder = await folderWith(t, {
      'run.toml': written(template),
      'broken.toml': written('{% for x in %}'),
      'prose.toml': config,
      'own.jinja': 'no template at all',
    });
    const { spec, chatTemplate } = await loadRunConfig('run.toml', { projectFolder: folder });
    assert.deepEqual([spec.chatTemplate?.path, chatTemplate], [null, template]);
    await assert.rejects(loadRunConfig('broken.toml', { projectFolder: folder }), /Jinja chat template/);
    await assert.rejects(loadRunConfig('prose.toml', { projectFolder: folder }), /neither \{\{ nor \{%/);
  });

  test('is with the base’s weights, and is the one that prompts and rows are rendered with', async (t) => {
    const chatTemplate = { path: null, sha256: sha256(Buffer.from(template)) };
    const test = await runWith(await makeRun(t), { chatTemplate });
    const { run, spec } = test;
    await test.store.put(layout.chatTemplate(), Buffer.from(template));
    const warm = await act(openRoles().warmUp, { run, from: null });
    const folder = await weightsFolder(storeOf(run), warm.policy.weights);
    const conversation = [
      { role: 'user', content: 'ab' },
      { role: 'assistant', content: 'ba' },
      { role: 'user', content: 'cd' },
    ] as const;
    const rendered = '<bos>ab<sep><bos>ba<sep><bos>cd<sep>';
    const own = await loadTokenizer(folder);
    assert.equal(new ConversationPrompts(own).render(conversation).text, rendered);
    const bare = await weightsFolder(storeOf(run), await withoutTemplate(test, warm.policy.weights));
    const given = await policyTokenizer(run, spec, { folder: bare, open: loadTokenizer });
    assert.equal(new ConversationPrompts(given).render(conversation).text, rendered, 'whatever a trainer exports');
    const usual = createPreset('preset:reverse-text-0.2m', { seed: 0 }).tokenizer;
    assert.notEqual(usual.renderPrompt(conversation).text, rendered);
  });
});

test('a prompt that tells the day tells the one its run began on, whenever and wherever it is rendered', async (t) => {
  const text = `{{ strftime_now('%A, %d %b %Y') }}: {{ messages[0].content }}`;
  const folder = await folderWith(t, presetFiles('preset:reverse-text-0.2m'));
  const chatTemplate = { path: null, sha256: sha256(Buffer.from(text)) };
  const { run, spec, store } = await runWith(await makeRun(t), { chatTemplate });
  await store.put(layout.chatTemplate(), Buffer.from(text));
  const messages = [{ role: 'user', content: 'ab' }];
  t.mock.timers.enable({ apis: ['Date'], now: new Date(2026, 10, 26, 23, 59) });
  // Two workers: each makes its own tokenizer.
  const rendered = async (at: typeof run): Promise<string> => {
    const open = (from: string, rendering?: Rendering): Promise<ChatTokenizer> => {
      const read = (name: string): string => readFileSync(path.join(from, name), 'utf8');
      const files = { tokenizer: read('tokenizer.json'), config: read('tokenizer_config.json') };
      const template = present({ chatTemplate: rendering?.chatTemplate });
      return Promise.resolve(new ChatTokenizer({ ...files, ...template }, from, rendering?.time ?? null));
    };
    const tokenizer = await policyTokenizer(at, spec, { folder, open });
    return new ConversationPrompts(tokenizer).render(messages).text;
  };
  const begun = { ...run, begunAt: minuteOf(new Date()) };
  const older = [await rendered(run)];
  assert.equal(await rendered(begun), 'Thursday, 26 Nov 2026: ab');
  t.mock.timers.setTime(new Date(2026, 10, 27, 0, 1).getTime());
  assert.equal(await rendered(begun), 'Thursday, 26 Nov 2026: ab', 'the next day');
  assert.equal(
    (await loadTokenizer(folder, { chatTemplate: text, time: begun.begunAt })).renderPrompt(messages).text,
    'Thursday, 26 Nov 2026: ab',
  );
  assert.deepEqual(
    [...older, await rendered(run)],
    ['Thursday, 26 Nov 2026: ab', 'Friday, 27 Nov 2026: ab'],
    'an older run',
  );
});

/** The run with other settings. */
async function runWith(test: TestRun, more: Partial<RunSpec>): Promise<TestRun> {
  const spec = { ...test.spec, ...more };
  return { ...test, spec, run: { ...test.run, spec: await putJson(test.store, 'specs/own.json', spec) } };
}

/** A version as a custom trainer may leave it: with the model's tokenizer and nothing of the run's. */
async function withoutTemplate({ store }: TestRun, weights: string): Promise<string> {
  for (const name of ['config.json', 'tokenizer.json'])
    await store.put(`weights/bare/${name}`, (await store.read(weights + name))!);
  await store.put('weights/bare/tokenizer_config.json', Buffer.from('{}'));
  return 'weights/bare/';
}

async function folderWith(t: TestContext, files: Readonly<Record<string, string>>): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-template-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  for (const [name, text] of Object.entries(files)) await writeFile(path.join(folder, name), text);
  return folder;
}
