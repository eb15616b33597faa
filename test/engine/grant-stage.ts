/** A worker of our own Temporal server as tests see it, and somebody who listens for its requests. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type RequestListener } from 'node:http';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { trustedRootsVariable } from '../../core/child-environment.ts';

export const key = 'RATCHET_GRANTED_SERVERS_TEST_KEY';
export const secret = 'a-key-that-stays-here';
export const notAsked = /is not asked.*Expected the line ".*" in .*granted, found none/s;

/** A worker of a project's own server, with a key in its environment. */
export function stage(t: TestContext) {
  const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-servers-'));
  const project = path.join(folder, 'project');
  mkdirSync(project);
  const before = process.env[trustedRootsVariable];
  Object.assign(process.env, { [trustedRootsVariable]: project, [key]: secret });
  t.after(() => {
    if (before === undefined) delete process.env[trustedRootsVariable];
    else process.env[trustedRootsVariable] = before;
    delete process.env[key];
    rmSync(folder, { recursive: true });
  });
  const write = (name: string, text: string): string => {
    const file = path.join(project, name);
    writeFileSync(file, text, { mode: 0o644 });
    return file;
  };
  return { folder, project, write };
}

/** Somebody who listens on the loopback, and what came there. */
export async function listener(t: TestContext, answer: RequestListener = (_, reply) => void reply.end('{}')) {
  const heard: Record<string, unknown>[] = [];
  const server = createServer((request, reply) => {
    heard.push(request.headers);
    request.resume();
    answer(request, reply);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, heard };
}
