import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { openSandboxProvider } from '../../../backends/sandboxes/index.ts';
import { linesOfProvider } from '../../../backends/sandboxes/named.ts';
import type { SnapshotPlace } from '../../../backends/sandboxes/types.ts';
import { trustedRootsVariable } from '../../../core/child-environment.ts';
import type { SandboxProviderSpec } from '../../../core/settings/sandboxes.ts';
import { writeGrants } from '../../../host/grants.ts';

/** A worker of our own Temporal server, which anybody on the machine may tell to open a provider. */
async function openWorker(t: TestContext): Promise<string> {
  const project = await mkdtemp(path.join(os.tmpdir(), 'ratchet-providers-'));
  const before = process.env[trustedRootsVariable];
  process.env[trustedRootsVariable] = project;
  t.after(async () => {
    if (before === undefined) delete process.env[trustedRootsVariable];
    else process.env[trustedRootsVariable] = before;
    await rm(project, { recursive: true, force: true });
  });
  return project;
}

const nowhere = {} as SnapshotPlace;
const open = (spec: SandboxProviderSpec) => openSandboxProvider(spec, nowhere);
const ssh = {
  kind: 'ssh',
  host: 'me@box',
  port: null,
  identityFile: null,
  knownHostsFile: null,
  folder: '/tmp',
} as const;

test('a worker reaches no host and no socket, and executes no module, that its user did not name', async (t) => {
  const project = await openWorker(t);
  const file = path.join(project, 'provider.mjs');
  await writeFile(file, 'export default () => { throw new Error("it was executed"); };\n');
  const module = { kind: 'module', import: { path: file, sha256: null }, options: { region: 'x' } } as const;
  const docker = { kind: 'docker', socket: path.join(project, 'docker.sock') } as const;
  for (const spec of [ssh, module, docker]) {
    await assert.rejects(open(spec), (error: Error) => {
      assert.match(error.message, new RegExp(`Sandboxes of kind "${spec.kind}" is not taken from Temporal`));
      assert.ok(error.message.includes(linesOfProvider(spec).at(-1)!), 'it says the line that grants it');
      return true;
    });
    writeGrants(project, linesOfProvider(spec));
  }
  await assert.rejects(open(module), /it was executed/);
  await assert.rejects(open(docker), /Expected the socket of Docker or Podman/);
  await (await open(ssh)).close();
  await assert.rejects(open({ ...ssh, host: 'me@other' }), /not taken from Temporal/);
  await assert.rejects(open({ ...module, options: { region: 'y' } }), /not taken from Temporal/);
  await assert.rejects(open({ kind: 'namespace', python: '/usr/bin/env' }), /not taken from Temporal/);
});

test('namespaces of this machine need no grant', () => {
  assert.deepEqual(linesOfProvider({ kind: 'namespace', python: 'python3' }), []);
});
