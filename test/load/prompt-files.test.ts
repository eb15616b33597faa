/** `system_prompt` in run files, files of evaluations and on the command line: a text, or a file of the project with it. */
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { loadNamedEvaluations } from '../../load/evaluations/load-evaluations.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { ConfigProblems } from '../../config/toml/problems.ts';
import { evaluationMetadata } from '../../core/eval/metadata.ts';
import { differentSettings, readMetadata } from '../../core/eval/result-metadata.ts';
import { identityOf } from '../../core/eval/same-evaluation.ts';
import { emptyTally } from '../../core/eval/tally.ts';
import { isPromptFile } from '../../core/rl/rollout/system-prompt.ts';
import { differencesBetween } from '../../runs/run-identity.ts';
import { sha256 } from '../../store/file-store.ts';

const found = 'Answer with one word.\n\n{"no": "template"}\n';

async function project(t: TestContext, files: Readonly<Record<string, string>>): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-prompts-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  for (const [name, text] of Object.entries(files)) {
    await mkdir(path.dirname(path.join(folder, name)), { recursive: true });
    await writeFile(path.join(folder, name), text);
  }
  return folder;
}

const run = (lines: string, rest = '') =>
  `model = "preset:reverse-text-0.2m"\nmax_steps = 2\n[[env]]\nid = "reverse-text"\n${lines}\n${rest}`;

describe('system_prompt', () => {
  test('is a file where it is one word or ends with .txt or .md, else the text itself', () => {
    for (const file of ['best_prompt.txt', './p/best.md', 'outputs/gepa/a b/best_prompt.txt', 'prompt', 'C:\\p.txt'])
      assert.ok(isPromptFile(file), file);
    for (const text of ['', 'Be brief.', 'Think.\n', 'Read a.txt\nthen answer', '你是一个助手。'])
      // prettier-ignore
      assert.ok(!isPromptFile(text), text);
  });

  test('of a run file is in the spec as its text, for training and for evaluations of the same environment', async (t) => {
    const files = {
      'runs/file.toml': run('system_prompt = "./best_prompt.txt"', '[eval]\ninterval = 1'),
      'runs/text.toml': run('system_prompt = "Be brief."', '[eval]\n[[eval.env]]\nid = "arithmetic"\nsystem_prompt = ""'), // prettier-ignore
      'runs/best_prompt.txt': found,
    };
    const projectFolder = await project(t, files);
    const { spec, sent } = await loadRunConfig('runs/file.toml', { projectFolder });
    assert.deepEqual([spec.environments[0]!.systemPrompt, spec.eval!.environments[0]!.systemPrompt], [found, found]);
    assert.equal(sent.beside['best_prompt.txt'], sha256(Buffer.from(found)));
    const { spec: text } = await loadRunConfig('runs/text.toml', { projectFolder });
    assert.deepEqual([text.environments[0]!.systemPrompt, text.eval!.environments[0]!.systemPrompt], ['Be brief.', '']);
    const [difference] = differencesBetween({ ...text, environments: spec.environments }, text);
    assert.equal(difference?.name, '[[env]] reverse-text system_prompt');
    assert.equal(difference?.staysForLife, true);
  });

  test('of a file that is not there is refused at its place, with how a text is told from a file', async (t) => {
    const projectFolder = await project(t, { 'run.toml': run('system_prompt = "Brief"') });
    await assert.rejects(loadRunConfig('run.toml', { projectFolder }), (error: unknown) => {
      assert(error instanceof ConfigProblems);
      const [problem, ...others] = error.problems;
      assert.deepEqual([others.length, problem!.path, problem!.line], [0, 'env[0].system_prompt', 5]);
      assert.match(problem!.received, /Brief; one word is read as the name of a file, so end a text of one word with a line break/); // prettier-ignore
      return true;
    });
  });

  test('of a run may lie among the results of a search, and in every dialect that has environments', async (t) => {
    const prompt = 'system_prompt = "outputs/gepa/a--b/1/best_prompt.txt"';
    const files = {
      'outputs/gepa/a--b/1/best_prompt.txt': found,
      'hosted.toml': `model = "Qwen/Qwen3-4B"\nmax_steps = 2\n[[env]]\nid = "reverse-text"\n${prompt}\n`,
      'prime.toml': `max_steps = 2\n[model]\nname = "Qwen/Qwen3-4B"\n[orchestrator]\nbatch_size = 32\ngroup_size = 8\n[[orchestrator.train.source]]\n${prompt}\n[orchestrator.train.source.env.taskset]\nid = "reverse-text"\n[trainer]\n[inference]\n`,
      'vf.toml': `model = "Qwen/Qwen3-4B"\n[env]\nid = "reverse-text"\n${prompt}\n[inference]\ngpus = 1\n[trainer]\ngpus = 1\n[trainer.args]\nmax_steps = 2\n`,
    };
    const projectFolder = await project(t, files);
    for (const [file, dialect] of [
      ['hosted.toml', 'hosted'],
      ['hosted.toml', 'flat'],
      ['prime.toml', 'prime-rl'],
      ['vf.toml', 'vf-rl'],
    ] as const) {
      const { spec } = await loadRunConfig(file, { projectFolder, dialect, isOnlyLookedAt: true });
      assert.equal(spec.environments[0]!.systemPrompt, found, dialect);
    }
  });

  test('of an evaluation is part of what it is, and shows where two are compared', async (t) => {
    const projectFolder = await project(t, { 'best_prompt.txt': found });
    const load = async (over: Record<string, string>) => {
      const settings = { model: 'm', api_base_url: 'http://127.0.0.1:9/v1', ...over };
      const { evaluations } = await loadNamedEvaluations(['reverse-text'], { projectFolder, over: settings });
      return evaluations[0]!.input;
    };
    const [plain, under, none] = [await load({}), await load({ system_prompt: 'best_prompt.txt' }), await load({ system_prompt: '' })]; // prettier-ignore
    assert.deepEqual([under, none].map(({ environment }) => environment.systemPrompt), [found, '']); // prettier-ignore
    const results = { store: 'file:///x/', name: 'a', prefix: '' };
    assert.equal(new Set([plain, under, none].map((input) => identityOf({ ...input, results }))).size, 3);
    const metadata = [plain, under, none].map((input) =>
      readMetadata(evaluationMetadata({ input, examples: 1, tally: emptyTally, seconds: 1, tools: null }))!,
    );
    assert.deepEqual(differentSettings(metadata), [{ name: 'system_prompt', values: [null, found, ''] }]);
    await assert.rejects(load({ system_prompt: 'other.txt' }), /reverse-text: system_prompt: .*other\.txt/);
  });
});
