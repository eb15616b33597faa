/** Runs on a Temporal server of several processes with PostgreSQL, reached as a user reaches a company's. */
import assert from 'node:assert/strict';
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import type { StepCommit } from '../../core/rl/run-state.ts';
import { smallRun } from '../e2e/small-run.ts';
import { until } from '../eventually.ts';
import { RunningCommand, thisVersion } from '../faults/upgrade.ts';
import { temporaryFolder } from '../workers/fixtures/processes.ts';
import { hasOpenssl, makeCertificates } from '../workers/fixtures/tls.ts';
import { historyFigures } from './history-figures.ts';
import { limits } from './limits.ts';
import { clusterPrograms } from './programs.ts';
import { startTestCluster, type TestCluster, type TestClusterOptions } from './test-cluster.ts';

const steps = 3;
const run = smallRun.replace('max_steps = 12', `max_steps = ${steps}`).replace('steps = 60', 'steps = 20');

const programs = await clusterPrograms((line) => process.stderr.write(`${line}\n`));
const skip =
  typeof programs === 'string' ? programs : hasOpenssl() ? false : 'there is no openssl to make certificates with';

async function start(t: TestContext, options: Omit<TestClusterOptions, 'programs'> = {}): Promise<TestCluster> {
  assert.ok(typeof programs !== 'string');
  const cluster = await startTestCluster({ programs, limits, ...options });
  t.after(() => cluster.stop());
  return cluster;
}

/** A project folder with the run's file. */
function project(t: TestContext): string {
  const folder = temporaryFolder(t);
  mkdirSync(path.join(folder, 'outputs'));
  writeFileSync(path.join(folder, 'small.toml'), run);
  return folder;
}

/** `ratchet …` in a folder, with the variables of a user. */
function ratchet(t: TestContext, folder: string, variables: Readonly<Record<string, string>>, ...args: string[]) {
  const command = new RunningCommand(thisVersion, args, { folder, environment: { ...process.env, ...variables } });
  t.after(() => command.stop());
  return command;
}

async function says(command: RunningCommand): Promise<string> {
  await command.ended;
  return command.said;
}

function policyAfter(folder: string, step: number): StepCommit['policy'] {
  const file = path.join(folder, `outputs/small/lineages/main/steps/step_${step}.json`);
  return (JSON.parse(readFileSync(file, 'utf8')) as StepCommit).policy;
}

test(
  'a run on a cluster behind mTLS makes the weights that it makes on the server of its folder, within the limits',
  { skip },
  async (t) => {
    const alone = project(t);
    const said = await says(ratchet(t, alone, {}, 'train', 'small.toml'));
    const cluster = await start(t, { hasTls: true });
    const folder = project(t);
    const stack = ratchet(t, folder, cluster.environment, 'dev', '--no-page');
    await stack.says(/ready\. Temporal ([^\s,]+)/);
    const requests = (): Promise<number> =>
      cluster.counted('frontend', 'service_requests', `namespace="${cluster.namespace}"`);
    const before = await requests();
    const train = ratchet(t, folder, cluster.environment, 'train', 'small.toml');
    assert.equal(await train.ended, 0, train.said);
    t.diagnostic(`${(await requests()) - before} requests`);
    assert.equal(policyAfter(folder, steps).digest, policyAfter(alone, steps).digest, said);

    const { client, close } = await cluster.connect();
    t.after(close);
    const figures = await historyFigures(client, 'small');
    t.diagnostic(JSON.stringify(figures));
    // What docs/guide/cluster.md says, and the part of it that evaluations add.
    assert.ok(figures.payloadBytesMax < 16 * 1024, figures.payloadOf);
    assert.ok(figures.events / steps < 120 && figures.pendingActivitiesMax < 20);
  },
);

test(
  'what an administrator has not made is said with the command that makes it, and is not tried',
  { skip },
  async (t) => {
    const cluster = await start(t, { hasTls: true, hasTokens: true, hasSearchAttributes: false });
    const folder = project(t);
    const command =
      `temporal operator search-attribute create --address ${cluster.address} --namespace ${cluster.namespace} ` +
      '--name RatchetRun --type Keyword --name RatchetStep --type Int --name RatchetReward --type Double';
    const doctor = await says(ratchet(t, folder, cluster.environment, 'doctor'));
    assert.ok(doctor.replaceAll(/\s+/g, ' ').includes(command), doctor);

    const stack = ratchet(t, folder, cluster.environment, 'dev', '--no-page');
    await stack.says(/ready\. Temporal ([^\s,]+)/);
    const train = ratchet(t, folder, cluster.environment, 'train', 'small.toml');
    assert.equal(await train.ended, 0, train.said);
    assert.ok(train.said.replaceAll(/\s+/g, ' ').includes(command), train.said);
    const { client, close } = await cluster.connect();
    t.after(close);
    const { customAttributes } = await client.connection.operatorService.listSearchAttributes({
      namespace: cluster.namespace,
    });
    assert.deepEqual(
      Object.keys(customAttributes ?? {}).filter((name) => name.startsWith('Ratchet')),
      [],
    );
    assert.match(await says(ratchet(t, folder, cluster.environment, 'runs')), /small\s/);

    await cluster.makeSearchAttributes();
    assert.doesNotMatch(await says(ratchet(t, folder, cluster.environment, 'doctor')), /search attributes/);
  },
);

test('who may not enter is told why in a sentence, and what to set', { skip }, async (t) => {
  const cluster = await start(t, { hasTls: true, hasTokens: true });
  const stranger = makeCertificates(t);
  const folder = project(t);
  const tell = (changes: Readonly<Record<string, string>>): Promise<string> =>
    says(ratchet(t, folder, { ...cluster.environment, ...changes }, 'runs'));
  const [noCertificate, noToken] = [
    { TEMPORAL_TLS_CLIENT_CERT_PATH: '', TEMPORAL_TLS_CLIENT_KEY_PATH: '' },
    { TEMPORAL_API_KEY: '' },
  ];
  const cases: readonly [Readonly<Record<string, string>>, RegExp][] = [
    [noCertificate, /client certificate: TEMPORAL_TLS_CLIENT_CERT_PATH/],
    [
      {
        TEMPORAL_TLS_CLIENT_CERT_PATH: stranger.client.certificate,
        TEMPORAL_TLS_CLIENT_KEY_PATH: stranger.client.key,
      },
      /does not accept the client certificate/,
    ],
    [
      { TEMPORAL_TLS_SERVER_CA_CERT_PATH: stranger.authority.certificate },
      /not signed by the authority in TEMPORAL_TLS_SERVER_CA_CERT_PATH/,
    ],
    [{ TEMPORAL_NAMESPACE: 'another' }, /does not let these credentials .*TEMPORAL_NAMESPACE names/],
    [noToken, /does not let these credentials .*TEMPORAL_API_KEY_FILE/],
  ];
  for (const [changes, message] of cases) {
    const said = await tell(changes);
    t.diagnostic(said.trim());
    assert.match(said.replaceAll(/\s+/g, ' '), message);
    assert.ok(said.trim().split('\n').length <= 4, said);
  }
});

test(
  'certificates are replaced while workers poll: the old authority is refused, and the next run trains',
  { skip },
  async (t) => {
    // Connections are renewed at once, so that an old certificate does not outlive its authority by minutes.
    const cluster = await start(t, {
      hasTls: true,
      limits: {
        ...limits,
        'frontend.keepAliveMaxConnectionAge': '5s',
        'frontend.keepAliveMaxConnectionAgeGrace': '5s',
      },
    });
    const folder = project(t);
    const own = { certificate: path.join(folder, 'client.pem'), key: path.join(folder, 'client.key') };
    const put = ({ client }: { readonly client: typeof own }): void => {
      copyFileSync(client.certificate, own.certificate);
      copyFileSync(client.key, own.key);
    };
    put(cluster.certificates!);
    const variables = {
      ...cluster.environment,
      TEMPORAL_TLS_CLIENT_CERT_PATH: own.certificate,
      TEMPORAL_TLS_CLIENT_KEY_PATH: own.key,
    };
    const stack = ratchet(t, folder, variables, 'dev', '--no-page');
    await stack.says(/ready\. Temporal ([^\s,]+)/);
    const first = ratchet(t, folder, variables, 'train', 'small.toml', '--name', 'first');
    assert.equal(await first.ended, 0, first.said);

    const second = makeCertificates(t);
    cluster.trustClientsOf(second.authority.certificate);
    await until('the old certificate is refused', async () =>
      /does not accept the client certificate/.test(await says(ratchet(t, folder, variables, 'runs'))),
    );
    put(second);
    const next = ratchet(t, folder, variables, 'train', 'small.toml', '--name', 'second');
    assert.equal(await next.ended, 0, next.said);
    assert.doesNotMatch(stack.said, /restarting/);
  },
);
