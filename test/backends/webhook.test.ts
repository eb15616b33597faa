/** Notices at a webhook: what is posted, how it is signed, and where nothing is posted to. */
import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, test, type TestContext } from 'node:test';
import { isPublicAddress, postNotice, publicLookup, signatureOf, webhookOf } from '../../backends/webhook.ts';
import { openRunStore } from '../../store/index.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { NotifySpec } from '../../config/run-spec.ts';
import { layout } from '../../runs/layout.ts';
import { writeNotice } from '../../runs/metrics/notices.ts';
import type { StoredNotice } from '../../core/rl/notices.ts';
import { NoticePost } from '../../workers/metrics/post-notices.ts';

const notice: StoredNotice = {
  id: 'main.step_15.entropy',
  kind: 'entropy',
  lineage: 'main',
  step: 15,
  time: new Date().toISOString(),
  text: 'entropy fell <!channel> & stayed',
};

interface Taken {
  readonly headers: IncomingMessage['headers'];
  readonly body: string;
}

/** Answers with these statuses, one after another; the last one from then on. */
async function receiver(t: TestContext, ...statuses: number[]) {
  const taken: Taken[] = [];
  const server = createServer((request, response) => {
    let body = '';
    request.on('data', (piece) => (body += String(piece)));
    request.on('end', () => {
      const status = statuses.length > 1 ? statuses.shift()! : (statuses[0] ?? 200);
      taken.push({ headers: request.headers, body });
      response.writeHead(status, status === 302 ? { location: 'http://127.0.0.1:1/' } : {}).end('said');
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.close());
  const { port } = server.address() as AddressInfo;
  return { taken, port, url: `http://127.0.0.1:${port}/hook` };
}

const told = (notify: Partial<NotifySpec>): NotifySpec => NotifySpec.parse({ ...NotifySpec.parse({}), ...notify });

describe('a webhook', () => {
  test('takes plain JSON, signed as Standard Webhooks has it', async (t) => {
    const { taken, url } = await receiver(t);
    const webhook = webhookOf(told({ webhook: url, secretVar: 'NOTIFY_SECRET' }), { NOTIFY_SECRET: 'whsec_c2VjcmV0' })!;
    await postNotice(webhook, 'words', notice, 1_700_000_000_500);
    const [{ headers, body }] = taken as [Taken];
    assert.deepEqual(JSON.parse(body), { run: 'words', ...notice });
    assert.equal(headers['webhook-id'], 'words.main.step_15.entropy');
    assert.equal(headers['webhook-timestamp'], '1700000000');
    const own = createHmac('sha256', 'secret').update(`words.main.step_15.entropy.1700000000.${body}`).digest('base64');
    assert.equal(headers['webhook-signature'], `v1,${own}`);
    // The example of its specification's own tests (standard-webhooks, libraries/javascript/src/index.test.ts).
    const example = 'msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{"test": 2432232314}';
    assert.equal(
      signatureOf('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', example),
      'g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=',
    );
  });

  test("takes Slack's format, in which nothing that was said calls anybody", async (t) => {
    const { taken, url } = await receiver(t);
    await postNotice(webhookOf(told({ webhook: url, format: 'slack' }), {})!, 'words', notice);
    assert.deepEqual(JSON.parse(taken[0]!.body), {
      text: '*words* · step 15 · entropy\nentropy fell &lt;!channel&gt; &amp; stayed',
    });
    assert.equal(taken[0]!.headers['webhook-signature'], undefined);
    const slack = webhookOf(told({ webhookVar: 'NOTIFY_HOOK' }), {
      NOTIFY_HOOK: 'https://hooks.slack.com/services/T/B/x',
    })!;
    assert.equal(slack.format, 'slack');
  });

  test('is asked at no address of a private network unless that was written, and no redirect is followed', async (t) => {
    const { url } = await receiver(t, 302);
    await assert.rejects(postNotice(webhookOf(told({ webhook: url }), {})!, 'words', notice), /answered 302: said/);
    const looked = (...addresses: string[]): Promise<string> => {
      const found = addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 }));
      const lookup = publicLookup((_, __, callback) => callback(null, found));
      return new Promise((resolve) => {
        lookup('hook.example', {}, (error, address) =>
          resolve(error?.message ?? (typeof address === 'string' ? address : '')),
        );
      });
    };
    assert.equal(await looked('8.8.8.8'), '8.8.8.8');
    assert.match(await looked('10.0.0.8'), /hook\.example leads to 10\.0\.0\.8, which is not public.*private = true/);
    // One of several is enough to be refused: which is connected to is the system's choice.
    assert.match(await looked('8.8.8.8', '::1'), /leads to ::1/);
    const publics = [
      '8.8.8.8',
      '2606:4700::1111',
      '::ffff:8.8.8.8',
      '::ffff:808:808',
      '2a00:1450:4001::1',
      '100.128.0.1',
      '172.32.0.1',
      '198.20.0.1',
    ];
    const others = ['64:ff9b::7f00:1', '64:ff9b::8.8.8.8', '64:ff9b:1::1', '2002:7f00:1::', '2002:808:808::1', '2001:0:4136:e378::1', '2001:db8::1', '::127.0.0.1', '::8.8.8.8', '::2', 'fec0::1', 'fe80::1%eth0', 'febf::1', 'ff02::1', '100::1', 'fc00::1', '::ffff:7f00:1', '0:0:0:0:0:ffff:a00:1', '::ffff:169.254.169.254', '::ffff:0:127.0.0.1', '0.0.0.1', '192.0.0.1', '198.18.0.1', '198.19.255.255', '224.0.0.1', '240.0.0.1', '255.255.255.255', '100.127.255.255', '172.16.0.1','127.0.0.1', '10.1.2.3', '172.31.0.1', '192.168.1.1', '169.254.169.254', '100.64.0.1', '0.0.0.0', '::1', '::', 'fd00::1', 'fe80::1', '::ffff:127.0.0.1', '::ffff:10.0.0.1', 'x']; // prettier-ignore
    assert.deepEqual(publics.filter(isPublicAddress), publics);
    assert.deepEqual(others.filter(isPublicAddress), []);
  });

  test('is told what it did not take, later, in order and under the same id; the run hears nothing of it', async (t) => {
    const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-hook-'));
    t.after(() => rm(folder, { recursive: true, force: true }));
    const store = openRunStore(`${pathToFileURL(folder).href}/`, 'words');
    await writeNotice(store, notice);
    await writeNotice(store, { ...notice, step: 20, time: new Date(Date.now() + 1).toISOString() });
    await writeNotice(store, { ...notice, step: 1, time: '2020-01-01T00:00:00Z' });
    const { taken, url } = await receiver(t, 503, 200);
    const lines: string[] = [];
    const spec = { name: 'words', notify: told({ webhook: url }) };
    const post = NoticePost.of(spec, store, { log: (line) => void lines.push(line) });
    await post.advance();
    assert.match(
      lines.join(),
      /webhook: http:\/\/127\.0\.0\.1:\d+ answered 503: said; tried again later, training continues/,
    );
    assert.match(String(await store.read(layout.webhook())), /answered 503/);
    while (!post.isUpToDate) {
      await new Promise((resolve) => setTimeout(resolve, 100));
      await post.advance();
    }
    const ids = taken.map(({ headers }) => headers['webhook-id']);
    assert.deepEqual(ids, ['words.main.step_15.entropy', 'words.main.step_15.entropy', 'words.main.step_20.entropy']);
    assert.match(lines.join(), /works again/);
    const another = NoticePost.of(spec, store, { log: () => undefined });
    await another.advance();
    assert.deepEqual([another.isUpToDate, taken.length], [true, 3]);
  });

  test('of which a variable is not set waits, and says which', async (t) => {
    const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-hook-'));
    t.after(() => rm(folder, { recursive: true, force: true }));
    const store = openRunStore(`${pathToFileURL(folder).href}/`, 'words');
    await writeNotice(store, notice);
    const lines: string[] = [];
    const options = { log: (line: string) => void lines.push(line), environment: { NOTIFY_HOOK: 'ftp://user:word@x' } };
    await NoticePost.of({ name: 'words', notify: told({ webhookVar: 'NOTIFY_MISSING' }) }, store, options).advance();
    await NoticePost.of({ name: 'words', notify: told({ webhookVar: 'NOTIFY_HOOK' }) }, store, options).advance();
    assert.match(lines[0]!, /webhook_var = "NOTIFY_MISSING": expected that environment variable to be set/);
    assert.match(lines[1]!, /expected the URL of a webhook/);
    assert(!lines.join().includes('word@'));
  });
});

test('a run file names a webhook, and no secret', () => {
  const parsed = (notify: string) => {
    const text = `model = "preset:x"\n[[env]]\nid = "reverse-text"\n[notify]\n${notify}\n`;
    const found = parseRunConfig(text, { file: 'words.toml', overrides: {} });
    return found.ok
      ? found.spec.notify
      : found.problems.map(({ path: at, expected }) => `${at}: ${expected}`).join('\n');
  };
  const refused = (notify: string): string => {
    const found = parsed(notify);
    return typeof found === 'string' ? found : '';
  };
  assert.deepEqual(parsed('webhook = "https://alerts.example.com/x"\nsecret_var = "NOTIFY_SECRET"'), {
    webhook: 'https://alerts.example.com/x',
    webhookVar: null,
    format: null,
    secretVar: 'NOTIFY_SECRET',
    private: false,
    entropyShare: 0.1,
    lengthFactor: 2,
    mismatchKl: 0.1,
    evalFall: 0.05,
  });
  assert.match(refused('webhook = "https://hooks.slack.com/services/T0/B0/abc"'), /name that as webhook_var/);
  assert.match(refused('webhook = "https://user:word@example.com/"'), /no secret/);
  const secrets = [
    'https://api.telegram.org/bot123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/sendMessage',
    'https://example.com/bot123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/sendMessage?chat_id=1',
    'https://telegram.example.com/bot123456789%3AAAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/sendMessage',
    'https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX',
    'https://HOOKS.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX',
    'https://discord.com/api/webhooks/123456789012345678/abcdefghijklmnop-QRSTUVWX_0123456789',
    'https://discord.com/api/webhooks/123456789012345678/abcdefghijklmnopqrstuvwx',
    'https://relay.example.com/discordapp.com/api/webhooks/1/abcdefghijklmnopqrstuvwx',
    'https://tenant.webhook.office.com/webhookb2/x',
    'https://alerts.example.com/hooks/3f2504e0-4f89-11d3-9a0c-0305e82c3301',
    'https://alerts.example.com/?token=abc',
    'https://chat.googleapis.com/v1/spaces/AAAA/messages?key=k&token=t',
    'https://alerts.example.com/x#a1b2c3d4e5f6a7b8c9d0e1f2',
  ];
  for (const secret of secrets) {
    const said = refused(`webhook = "${secret}"`);
    assert.match(said, /webhook_var|no secrets/, secret);
    for (const part of [new URL(secret).pathname, secret.slice(-10)])
      assert.ok(part.length < 3 || !said.includes(part), said);
  }
  for (const plain of [
    'http://localhost:8080/hook',
    'https://alerts.example.com/teams/training-alerts/v2/2026',
    'https://ci.example.com/notify?channel=reinforcement-learning',
  ])
    assert.equal(refused(`webhook = "${plain}"`), '', plain);
  assert.match(refused('webhook = "http://a.example"\nwebhook_var = "NOTIFY_URL"'), /either webhook or webhook_var/);
  assert.match(refused('webhook_var = "AWS_SECRET_ACCESS_KEY"'), /begins with NOTIFY_/);
  assert.match(refused('secret_var = "NOTIFY_SECRET"'), /webhook or webhook_var beside it/);
});
