import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';
import { examineServers, type ServerReport } from '../../backends/inference/index.ts';
import { describeServers } from '../../cli/describe/servers.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { type FakeAnswer, fakeModelServer } from '../backends/fake-model-server.ts';

const runWith = (url: string, more = '', kind = 'openai'): RunSpec => {
  const text = `model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n[inference]\nkind = "${kind}"\nurl = "${url}"\n${more}`;
  const parsed = parseRunConfig(text, { file: 'run.toml' });
  assert(parsed.ok, JSON.stringify(parsed));
  return parsed.spec;
};

const json =
  (status: number, body: (temperature: number) => object): FakeAnswer =>
  ({ body: asked }, response) => {
    response.writeHead(status, { 'content-type': 'application/json' });
    response.end(JSON.stringify(body(Number(asked['temperature']))));
  };
const completion = (logprob: (temperature: number) => number, ids?: readonly number[]) =>
  json(200, (temperature) => ({
    choices: [
      {
        index: 0,
        finish_reason: 'length',
        text: 'a',
        token_ids: ids,
        logprobs: { token_logprobs: [logprob(temperature)] },
      },
    ],
  }));

/** Report on a server with one model and these answers. */
async function ask(
  t: TestContext,
  answers: Readonly<Record<string, FakeAnswer>>,
  more = '',
): Promise<[ServerReport, string]> {
  const server = await fakeModelServer(t);
  server.answers = {
    '/v1/models': json(200, () => ({ data: [{ id: 'm' }] })),
    '/update_weights': json(405, () => ({})),
    ...answers,
  };
  const spec = runWith(server.url, more);
  const [report] = await examineServers(spec.inference);
  assert(report);
  return [report, describeServers(spec, [report]).join('\n')];
}

describe('what `ratchet check` says of OpenAI-compatible servers', () => {
  test('one that gives token ids and takes weights will do', async (t) => {
    const [report, said] = await ask(t, { '/v1/completions': completion((temperature) => -0.1 * temperature, [7]) });
    assert.deepEqual([report.givesTokenIds, report.takesWeights, report.logprobsAreRaw], [true, true, false]);
    assert.match(said, /has m, gives token ids, takes new weights\n  needed: /);
    assert.match(said, /return_token_ids.*v0 or v1.*\/inference\/v1\/generate are not asked for/);
  });

  test('without token ids all environments are for evaluations only', async (t) => {
    const [report, said] = await ask(t, { '/v1/completions': completion(() => -1) });
    assert.equal(report.givesTokenIds, false);
    assert.match(
      said,
      /gives no token ids.*\n.*v0 and v1, are for evaluations only there.*expected 1 choices with token ids/,
    );
  });

  test('so they are where there is no such route', async (t) => {
    const [report] = await ask(t, { '/v1/completions': json(404, () => ({ detail: 'Not Found' })) });
    assert.equal(report.givesTokenIds, false);
  });

  test('one that keeps its weights is told apart', async (t) => {
    const [report, said] = await ask(t, {
      '/v1/completions': completion((temperature) => -temperature, [7]),
      '/update_weights': json(404, () => ({})),
    });
    assert.equal(report.takesWeights, false);
    assert.match(said, /has no \/update_weights\n.*no run can train with it/);
  });

  test('log probabilities before the temperature are seen, and matter where it is not 1', async (t) => {
    const raw = { '/v1/completions': completion(() => -1.5, [7]) };
    const [report, said] = await ask(t, raw, '[sampling]\ntemperature = 0.7\n');
    assert.equal(report.logprobsAreRaw, true);
    assert.match(said, /at temperature 0\.7, is refused; start vLLM with --logprobs-mode processed_logprobs/);
    const [, usual] = await ask(t, raw);
    assert.match(usual, /right at temperature 1 alone, which this run has/);
  });

  test('of one that does not answer it is said what could not be asked', async () => {
    const spec = runWith('http://127.0.0.1:9');
    const servers = await examineServers(spec.inference);
    const said = describeServers(spec, servers).join('\n');
    assert.match(said, /127\.0\.0\.1:9: could not be asked, so it is not known/);
    assert.match(said, /--logprobs-mode processed_logprobs/);
  });

  test('of a vLLM it is said what it computes in, where it tells, and where the file says otherwise', async (t) => {
    const askVllm = async (dtype: string, more = '') => {
      const server = await fakeModelServer(t);
      server.answers = {
        '/v1/models': json(200, () => ({ data: [{ id: 'm' }] })),
        '/v1/completions': completion((temperature) => -temperature, [7]),
        '/server_info': json(200, () => ({ vllm_config: `model='m', kv_cache_dtype=auto, dtype=${dtype}, seed=0` })),
      };
      const spec = runWith(server.url, more, 'vllm');
      return describeServers(spec, await examineServers(spec.inference)).join('\n');
    };
    assert.match(await askVllm('torch.float32'), /has m, .*, computes in float32/);
    assert.match(
      await askVllm('torch.bfloat16', '[inference.vllm]\ndtype = "auto"\n'),
      /computes in bfloat16(?!.*dtype is)/s,
    );
    const contradicted = await askVllm('torch.bfloat16', '[inference.vllm]\ndtype = "float32"\n');
    assert.match(
      contradicted,
      /computes in bfloat16\n.*dtype is "float32", and the server says otherwise: the canary uses the server/,
    );
  });

  test('Ratchet’s own servers need no word', async () => {
    const parsed = parseRunConfig('model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n', {
      file: 'a.toml',
    });
    assert(parsed.ok);
    assert.deepEqual(await examineServers(parsed.spec.inference), []);
  });
});
