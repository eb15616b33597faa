import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { examineTeacher, type TeacherReport } from '../../backends/inference/index.ts';
import { describeTeacher } from '../../cli/describe/servers.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { createPreset, saveModelFolder, startPolicyServer } from '../../engine/index.ts';
import { complete, type FakeAnswer, fakeModelServer, reply } from '../backends/fake-model-server.ts';

const specOf = (loss: 'opd' | 'sft', teacher: string): RunSpec => {
  const text = `model = "preset:reverse-text-0.2m"\nloss = "${loss}"\nrollouts_per_example = 1\n[[env]]\nid = "reverse-text"\n[teacher]\n${teacher}\n`;
  const parsed = parseRunConfig(text, { file: 'run.toml' });
  assert(parsed.ok, JSON.stringify(parsed));
  return parsed.spec;
};

async function ask(loss: 'opd' | 'sft', teacher: string): Promise<[TeacherReport, string]> {
  const reports = await examineTeacher(specOf(loss, teacher));
  assert.equal(reports.length, 1);
  return [reports[0]!, describeTeacher(reports).join('\n')];
}

async function teacherFolder(t: TestContext, preset: string): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'teacher-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  await saveModelFolder(createPreset(preset, { seed: 1 }), folder);
  return folder;
}

/** A teacher with these weights behind a server of its own; its URL. */
async function served(t: TestContext, preset: string): Promise<string> {
  const folder = await teacherFolder(t, preset);
  const server = await startPolicyServer({ key: null, host: '127.0.0.1', port: 0, allowRoots: [folder], threads: 1 });
  t.after(() => server.close());
  const body = JSON.stringify({ name: 'teacher', weight_dir: folder });
  const headers = { 'content-type': 'application/json' };
  assert.equal((await fetch(`${server.url}/update_weights`, { method: 'POST', body, headers })).status, 200);
  return server.url;
}

const at = (url: string, more = ''): string => `model = "teacher"\nurl = "${url}/v1"\n${more}`;
const models: Record<string, FakeAnswer> = {
  '/v1/models': (_, response) => reply(response, 200, { data: [{ id: 'teacher' }] }),
};
const said: FakeAnswer = (_, response) =>
  reply(response, 200, { choices: [{ index: 0, finish_reason: 'length', message: { content: 'Hi' } }] });

describe('what `ratchet check` says of a teacher', () => {
  test('a server with the model and the policy’s tokenizer scores', async (t) => {
    const [report, line] = await ask('opd', at(await served(t, 'preset:reverse-text-0.2m')));
    assert.deepEqual([report.hasModel, report.serves, report.hasSameTokens, report.why], [true, true, true, null]);
    assert.match(line, /^teacher: teacher at http:.*: has the model, scores prompts of token ids, and means by them/);
  });

  test('one with another tokenizer is told by what it calls a token', async (t) => {
    const [report, line] = await ask('opd', at(await served(t, 'preset:chars-0.4m')));
    assert.deepEqual([report.serves, report.hasSameTokens], [true, false]);
    assert.match(
      line,
      /has another tokenizer than the policy: token \d+ is ".*" to the policy, and ".*" there\n {2}→ /,
    );
  });

  test('one with a smaller vocabulary refuses the last tokens', async (t) => {
    const server = await fakeModelServer(t);
    const completions: FakeAnswer = ({ body }, response) => {
      const [prompt] = body.prompt as unknown as number[][];
      const last = Math.max(...prompt!);
      if (last > 9) return reply(response, 400, { error: { message: `Token id ${last} is out of vocabulary` } });
      const logprobs = prompt!.map((id, i) => (i === 0 ? null : { [id]: { logprob: -1, decoded_token: 'a' } }));
      reply(response, 200, { choices: [{ index: 0, prompt_logprobs: logprobs }] });
    };
    server.answers = { ...models, '/v1/completions': completions };
    const [report, line] = await ask('opd', at(server.url));
    assert.deepEqual([report.serves, report.hasSameTokens], [true, false]);
    assert.match(line, /another tokenizer than the policy: .*Token id \d+ is out of vocabulary/);
  });

  test('one that does not say what its tokens are leaves it open', async (t) => {
    const server = await fakeModelServer(t);
    const completions: FakeAnswer = ({ body }, response) => {
      const [prompt] = body.prompt as unknown as number[][];
      const logprobs = prompt!.map((id, i) => (i === 0 ? null : { [id]: { logprob: -1 } }));
      reply(response, 200, { choices: [{ index: 0, prompt_logprobs: logprobs }] });
    };
    server.answers = { ...models, '/v1/completions': completions };
    const [report, line] = await ask('opd', at(server.url));
    assert.deepEqual([report.serves, report.hasSameTokens], [true, null]);
    assert.match(line, /whether it has the policy’s tokenizer could not be told: .*decoded_token/);
  });

  test('one without prompt_logprobs cannot score', async (t) => {
    const server = await fakeModelServer(t);
    server.answers = {
      ...models,
      '/v1/completions': (call, response) => complete({ ...call, body: { ...call.body, prompt: [1, 2, 3] } }, response),
    };
    const [report, line] = await ask('opd', at(server.url));
    assert.deepEqual([report.serves, report.hasSameTokens], [false, null]);
    assert.match(line, /does not answer as needed: .*expected prompt_logprobs.*\n {2}→ it needs prompt_logprobs on/s);
  });

  test('one that plays is asked for a token of an answer', async (t) => {
    const server = await fakeModelServer(t);
    server.answers = { ...models, '/v1/chat/completions': said };
    const [report, line] = await ask('sft', at(server.url));
    assert.equal(report.serves, true);
    assert.match(line, /: has the model, answers messages$/);
    const { body } = server.calls.find(({ route }) => route === '/v1/chat/completions')!;
    assert.deepEqual([body.model, body['max_completion_tokens']], ['teacher', 1]);
  });

  test('one that refuses to play says why, and one that does not list the model is asked all the same', async (t) => {
    const server = await fakeModelServer(t);
    server.answers = {
      '/v1/models': (_, response) => reply(response, 200, { data: [{ id: 'another' }] }),
      '/v1/chat/completions': (_, response) => reply(response, 404, { error: { message: 'no model "teacher" here' } }),
    };
    const [report, line] = await ask('sft', at(server.url));
    assert.deepEqual([report.hasModel, report.serves], [false, false]);
    assert.match(
      line,
      /does not list it among its models, and does not answer .*no model "teacher" here\n {2}→ it needs/,
    );
  });

  test('a key that is not set is named, and nobody is asked', async (t) => {
    const server = await fakeModelServer(t);
    const [report, line] = await ask('sft', at(server.url, 'api_key_var = "RATCHET_TEST_NO_SUCH_KEY"'));
    assert.equal(report.missingKey, 'RATCHET_TEST_NO_SUCH_KEY');
    assert.match(
      line,
      /asks for a key in RATCHET_TEST_NO_SUCH_KEY, .* was not asked; not known: whether it has the model/,
    );
    assert.deepEqual([server.calls.length, server.probes], [0, 0]);
  });

  test('of one that is away it is said what could not be asked', async () => {
    const [report, line] = await ask('opd', at('http://127.0.0.1:9'));
    assert.notEqual(report.away, null);
    assert.match(line, /could not be asked \(.*Is the teacher running.*; not known: .* whether it scores prompts/);
  });

  test('a folder is compared by its tokenizer, that of an adapter by its base’s', async (t) => {
    const same = await teacherFolder(t, 'preset:reverse-text-0.2m');
    const folderSpec = (folder: string) => `model = "${folder}"`;
    const [report, line] = await ask('opd', folderSpec(same));
    assert.deepEqual([report.isFolder, report.hasSameTokens], [true, true]);
    assert.match(line, /which the run’s own policy servers hold beside the policy; it has the policy’s tokenizer/);

    const other = await teacherFolder(t, 'preset:chars-0.4m');
    const [, refused] = await ask('opd', folderSpec(other));
    assert.match(
      refused,
      /its tokenizer is another than the policy’s\n {2}→ only a teacher with the policy’s tokenizer/,
    );
    const [, served] = await ask('sft', folderSpec(other));
    assert.match(served, /→ serve it .* and name its url/);

    const adapter = path.join(same, 'adapter');
    await mkdir(adapter);
    const config = {
      peft_type: 'LORA',
      base_model_name_or_path: same,
      r: 4,
      lora_alpha: 8,
      target_modules: ['q_proj'],
    };
    await writeFile(path.join(adapter, 'adapter_config.json'), JSON.stringify(config));
    assert.equal((await ask('opd', folderSpec(adapter)))[0].hasSameTokens, true);

    await rm(path.join(other, 'tokenizer.json'));
    const [unknown, why] = await ask('opd', folderSpec(other));
    assert.equal(unknown.hasSameTokens, null);
    assert.match(why, /could not be told \(its tokenizer.json or the policy’s is not here\)/);
  });
});
