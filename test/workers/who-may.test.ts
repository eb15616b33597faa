/** Who a process acts as, and the name that it tells Temporal. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { hostname, userInfo } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { identityHere, loginHere, requireRole, rolesHere } from '../../workers/temporal/who-may.ts';
import { temporaryFolder } from './fixtures/processes.ts';

function withVariables(t: TestContext, variables: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(variables)) {
    const before = process.env[name];
    process.env[name] = value;
    t.after(() => (before === undefined ? delete process.env[name] : (process.env[name] = before)));
  }
}

const key = 'a long key of eve';
const keySha256 = createHash('sha256').update(key).digest('hex');
const own = { of: 'run', run: 'words', owner: () => Promise.resolve({ who: loginHere(), team: null }) } as const;
const foreign = { of: 'run', run: 'words', owner: () => Promise.resolve({ who: 'ben@desk', team: null }) } as const;

async function project(t: TestContext, role = 'operator'): Promise<string> {
  const folder = temporaryFolder(t);
  const text = `[users.me]\nrole = "${role}"\nlogins = ["${loginHere()}"]\n[users.eve]\nrole = "admin"\nkey_sha256 = "${keySha256}"\n`;
  await writeFile(path.join(folder, 'roles.toml'), text);
  return folder;
}

test('a process acts as its user at the operating system, whatever variables say', async (t) => {
  withVariables(t, { USER: 'eve', LOGNAME: 'eve', USERNAME: 'eve', SUDO_USER: 'eve' });
  assert.equal(loginHere(), `${userInfo().username}@${hostname()}`);
  assert.equal(await identityHere(), `ratchet ${loginHere()} ${process.pid}`);
  const projectFolder = await project(t);
  await requireRole('pause', own, { projectFolder });
  await assert.rejects(requireRole('pause', foreign, { projectFolder }), {
    name: 'NotAllowed',
    message: /^me is an operator \(roles\.toml\): words belongs to ben@desk.*role admin \(eve\)/,
  });
});

test('whoever has a key is whose it is; a key of nobody is refused, and does not fall back to the login', async (t) => {
  const projectFolder = await project(t);
  withVariables(t, { RATCHET_ROLES: path.join(projectFolder, 'roles.toml'), RATCHET_KEY: key });
  await requireRole('pause', foreign);
  assert.equal(await identityHere(), `ratchet eve ${process.pid}`);
  process.env['RATCHET_KEY'] = 'eve';
  await assert.rejects(requireRole('pause', own), {
    name: 'NotAllowed',
    message: /RATCHET_KEY is the key of nobody in/,
  });
  await assert.rejects(identityHere(), { name: 'NotAllowed' });
  await assert.rejects(requireRole('pause', own), (error: Error) => !error.message.includes(key));
});

test('without a file everybody may; a file that is named and cannot be read lets nobody', async (t) => {
  const projectFolder = temporaryFolder(t);
  assert.equal(await rolesHere(projectFolder), null);
  await requireRole('pause', foreign, { projectFolder });
  withVariables(t, { RATCHET_ROLES: 'missing.toml' });
  await assert.rejects(requireRole('pause', own, { projectFolder }), {
    name: 'ConfigInvalid',
    message: /missing\.toml.*ENOENT.*Nobody may steer until it can/,
  });
});
