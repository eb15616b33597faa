/** The door through which requests leave: which server hears one, and where a redirect does not take a key. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, test, type TestContext } from 'node:test';
import { HubClient } from '../../backends/hub/hub-client.ts';
import { type Asking, askServer, type Destination, requestOf } from '../../host/ask-server.ts';
import { requireServer, type ServerVariable, writeGrants } from '../../host/grants.ts';
import { key, listener, notAsked, secret, stage } from '../engine/grant-stage.ts';

const secrets = () => ({ authorization: `Bearer ${process.env[key]}` });
const server = (url: string, keys: readonly string[] = [key]): Destination => ({ what: 'It', url, keys });

/** Redirects every request to `to()`, and records it. */
async function sender(t: TestContext, to: (path: string) => string, status = 307) {
  return listener(t, (request, reply) => {
    const next = to(request.url ?? '');
    if (next === '') reply.end('here');
    else reply.writeHead(status, { location: next }).end();
  });
}

describe('the door', () => {
  test('tells a key to the server that was granted with it alone', async (t) => {
    const { project } = stage(t);
    const [own, other] = [await listener(t), await listener(t)];
    writeGrants(project, [`server ${own.url}`, `key ${key} ${own.url}`, `server ${other.url}`]);
    await askServer(server(own.url), `${own.url}/a`, { secrets });
    await askServer(server(other.url, []), `${other.url}/a`);
    await assert.rejects(askServer(server(other.url), `${other.url}/a`, { secrets }), notAsked);
    await assert.rejects(askServer(server(own.url, ['HF_TOKEN']), `${own.url}/a`, { secrets }), notAsked);
    // Headers of keys that were not named are left out.
    await askServer(server(other.url, []), `${other.url}/a`, { secrets });
    assert.deepEqual(own.heard.map(({ authorization }) => authorization), [`Bearer ${secret}`]); // prettier-ignore
    assert.deepEqual(other.heard.map(({ authorization }) => authorization), [undefined, undefined]); // prettier-ignore
  });

  test("asks at the server's own address, whatever the address of the request says", async (t) => {
    const { project } = stage(t);
    const [own, other] = [await listener(t), await listener(t)];
    writeGrants(project, [`server ${own.url}`, `key ${key} ${own.url}`]);
    await assert.rejects(askServer(server(own.url), `${other.url}/a`, { secrets }), /is not asked at/);
    const options = { path: '/a', hostname: '127.0.0.1', port: new URL(other.url).port, headers: secrets };
    const request = requestOf(server(own.url), options).end();
    await once(request, 'response');
    request.destroy();
    assert.deepEqual([own.heard.length, other.heard.length], [1, 0]);
  });

  test('takes neither a key nor a body where a redirect leads to another server, or to another part of it', async (t) => {
    const { project } = stage(t);
    const thief = await listener(t);
    const to: { url: string } = { url: '' };
    const own = await sender(t, (path) => (path === '/api/a' ? to.url : ''));
    const base = `${own.url}/api`;
    writeGrants(project, [`server ${own.url}`, `key ${key} ${own.url}`]);
    const ask = (asking: Asking) => askServer(server(base), `${base}/a`, { secrets, ...asking });
    for (const url of [`${thief.url}/x`, `${own.url}/elsewhere`, `${own.url}/apiary`]) {
      to.url = url;
      assert.equal((await ask({ redirects: 'followed' })).status, 200);
    }
    to.url = `${base}/b`;
    await ask({ redirects: 'followed' });
    const told = own.heard.filter(({ authorization }) => authorization !== undefined).length;
    assert.deepEqual([told, own.heard.length, thief.heard.length], [5, 7, 1]);
    assert.ok(!JSON.stringify(thief.heard).includes(secret));
    to.url = `${thief.url}/x`;
    await assert.rejects(ask({}), /fetch failed/);
    await assert.rejects(ask({ method: 'POST', body: 'prompts' }), /fetch failed/);
    assert.equal((await ask({ redirects: 'returned' })).status, 307);
    assert.equal((await ask({ method: 'POST', body: 'prompts', redirects: 'followed' })).status, 307);
    assert.equal((await ask({ method: 'POST', redirects: 'followed' })).status, 307);
    assert.equal(thief.heard.length, 1);
  });

  test('follows no redirect for ever, and none to what is not HTTP', async (t) => {
    const { project } = stage(t);
    const round = await sender(t, () => '/again');
    const data = await sender(t, () => 'data:text/plain,weights');
    writeGrants(project, [`server ${round.url}`, `server ${data.url}`]);
    const ask = (url: string) => askServer(server(url, []), url, { redirects: 'followed' });
    await assert.rejects(ask(round.url), /sends on more than 5 times/);
    assert.equal(round.heard.length, 6);
    await assert.rejects(ask(data.url), /is not asked at data:/);
  });
});

describe('a server that a variable of the environment names', () => {
  const url = 'http://mlflow.example:5000';
  const named = { MLFLOW_TRACKING_URI: `${url}/` };
  const mlflow = (more: { url?: string; keys?: readonly string[]; variables?: readonly ServerVariable[] } = {}) => ({
    url,
    keys: ['MLFLOW_TRACKING_TOKEN'],
    variables: ['MLFLOW_TRACKING_URI'] as const,
    ...more,
  });

  test('is granted with the keys that belong to that variable, while the address is from there', (t) => {
    const { project } = stage(t);
    const environment = { ...named, RATCHET_TRUSTED_ROOTS: project };
    requireServer(mlflow(), 'It', environment);
    const refused = [
      mlflow({ variables: [] }), // the run's file named it, and happens to say the same
      mlflow({ url: 'http://mlflow.example:5001' }),
      mlflow({ keys: ['MLFLOW_TRACKING_TOKEN', 'WANDB_API_KEY'] }),
      mlflow({ variables: ['WANDB_BASE_URL', 'OTEL_EXPORTER_OTLP_ENDPOINT'] }),
    ];
    for (const server of refused) assert.throws(() => requireServer(server, 'It', environment), notAsked);
    for (const MLFLOW_TRACKING_URI of ['', 'no url', undefined])
      assert.throws(() => requireServer(mlflow(), 'It', { ...environment, MLFLOW_TRACKING_URI }), notAsked);
  });

  test('is the Hugging Face Hub where HF_ENDPOINT names no other', (t) => {
    const { project } = stage(t);
    const at = (url: string, keys: readonly string[], HF_ENDPOINT = '') =>
      requireServer({ url, keys, variables: ['HF_ENDPOINT'] }, 'It', { RATCHET_TRUSTED_ROOTS: project, HF_ENDPOINT });
    at('https://huggingface.co', ['HF_TOKEN']);
    at('https://mirror.example', ['HF_TOKEN'], 'https://mirror.example/hf');
    assert.throws(() => at('https://huggingface.co', ['HF_TOKEN'], 'https://mirror.example'), notAsked);
    assert.throws(() => at('https://mirror.example', ['HF_TOKEN']), notAsked);
    assert.throws(() => at('https://huggingface.co', ['OTHER_KEY']), notAsked);
  });

  test('a Hub that no variable names is told no token', async (t) => {
    const { project } = stage(t);
    const { url, heard } = await listener(t);
    const settings = { endpoint: url, cache: '', isOffline: false, token: { value: secret, from: 'HF_TOKEN' } };
    await assert.rejects(new HubClient(settings).repository('owner/name', 'main'), notAsked);
    writeGrants(project, [`server ${url}`]);
    await assert.rejects(new HubClient(settings).repository('owner/name', 'main'), /with the key in HF_TOKEN/);
    assert.deepEqual(heard, []);
  });
});

test('a refusal is one line with the setting, the origin, the name of the key and what grants it', async (t) => {
  const { project } = stage(t);
  const url = 'http://127.0.0.1:5000';
  writeGrants(project, [`server ${url}`]);
  const destination = { ...server(url), what: 'MLflow ([mlflow] tracking_uri)' };
  await assert.rejects(askServer(destination, url, { secrets }), ({ message }: Error) => {
    const told = `^MLflow \\(\\[mlflow\\] tracking_uri\\) at ${url} is not asked with the key in ${key}: `;
    assert.match(message, new RegExp(`${told}.*"key ${key} ${url}".*npx ratchet-rl train FILE`));
    return !message.includes(secret) && !message.includes('\n');
  });
});
