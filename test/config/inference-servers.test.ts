import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { namedServers } from '../../core/names.ts';
import { accept, refuse } from './read-run.ts';

const minimal = 'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n';
const primeRl = `
model = { name = "Qwen/Qwen3-0.6B" }
max_steps = 10
[trainer]
[orchestrator]
batch_size = 32
group_size = 8
[[orchestrator.train.source]]
env = { taskset = { id = "owner/gsm8k" } }
`;

function serversOf(text: string) {
  const { inference } = accept(text).spec;
  assert.ok(inference.kind !== 'module' && inference.kind !== 'tinker', 'those have no pool of servers');
  return inference;
}

const problems = (text: string) => refuse(text).map(({ path, expected }) => `${path}: ${expected}`);

describe('inference servers in a run file', () => {
  test('one server, or several that share the rollouts', () => {
    const one = serversOf(`${minimal}[inference]\nurl = "http://a:8000"\n`);
    assert.deepEqual(
      [one.kind, one.url, namedServers(one)],
      ['embedded', 'http://a:8000', 'the server at http://a:8000'],
    );
    const more = serversOf(
      `${minimal}[inference]\nkind = "openai"\nurl = ["http://a/v1", "http://b/v1"]\napi_key_var = "MY_KEY"\ntimeout = 30\nmax_concurrent = 64\nheaders = { x-team = "blue" }\nheaders_from_env = { x-token = "MY_TOKEN" }\n`,
    );
    assert.deepEqual(
      [more.kind, more.url, more.apiKeyVar, more.timeoutS, more.maxConcurrent, more.headers, more.headersFromEnv],
      ['openai', ['http://a/v1', 'http://b/v1'], 'MY_KEY', 30, 64, { 'x-team': 'blue' }, { 'x-token': 'MY_TOKEN' }],
    );
    assert.equal(namedServers(more), '2 servers: http://a/v1, http://b/v1');
  });

  test('an alias of an endpoints file, in the words of evaluations', () => {
    const { url, endpoints } = serversOf(`${minimal}[inference]\nendpoint_id = "mine"\n`);
    assert.deepEqual([url, endpoints], [null, { path: './configs/endpoints.toml', id: 'mine' }]);
  });

  test('what does not go together is told at its place', () => {
    const inference = (text: string) => problems(`${minimal}[inference]\n${text}\n`).join('\n');
    assert.match(inference('url = "http://a"\nendpoint_id = "mine"'), /inference\.endpoint_id: nothing, or no url/);
    assert.match(inference('endpoints_path = "e.toml"'), /inference\.endpoints_path: an endpoint_id beside it/);
    assert.match(inference('endpoint_id = "mine"\napi_key_var = "A_KEY"'), /inference\.api_key_var: nothing: each/);
    assert.match(inference('kind = "openai"'), /url or endpoint_id, because kind is "openai"/);
    assert.match(inference('url = ["http://a", "http://a"]'), /each server once/);
    assert.match(inference('url = ["a"]'), /inference\.url.*a URL such as/);
  });

  test('a key that is written out is refused and not repeated', () => {
    for (const line of [
      'api_key_var = "sk-abcdefghijklmnop1234"',
      'headers = { Authorization = "Bearer abc" }',
      'headers = { x-other = "sk-abcdefghijklmnop1234" }',
    ]) {
      const said = refuse(`${minimal}[inference]\nurl = "http://a"\n${line}\n`);
      assert.doesNotMatch(JSON.stringify(said), /abcdefghijklmnop|Bearer abc/);
    }
  });

  test('prime-rl’s client names servers of any kind; what else it says of them has no effect', () => {
    const { spec, warnings } = accept(
      `${primeRl}[orchestrator.model.client]\nbase_url = ["http://a:8000/v1", "http://b:8000/v1"]\napi_key_var = "VLLM_API_KEY"\ntimeout = 1200\nconnect_timeout = 3\n`,
    );
    const { inference } = spec;
    assert.ok(inference.kind === 'openai', inference.kind);
    assert.deepEqual(
      [inference.url, inference.apiKeyVar, inference.timeoutS],
      [['http://a:8000/v1', 'http://b:8000/v1'], 'VLLM_API_KEY', 1200],
    );
    const ofClient = warnings.filter((warning) => warning.includes('client'));
    assert.equal(ofClient.length, 1);
    assert.match(ofClient[0]!, /^orchestrator\.model\.client\.connect_timeout has no effect here: /);
  });
});
