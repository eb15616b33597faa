/** Tokens with which a Temporal server knows its users, and the address where it finds the key of their signatures. */
import { createSign, generateKeyPairSync } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface Permission {
  /** `temporal-system` stands for all. */
  readonly namespace: string;
  readonly role: 'read' | 'write' | 'admin';
}

export interface TokenKeys {
  readonly url: string;
  /** A JSON Web Token of an hour. */
  token(permission: Permission): string;
  close(): Promise<void>;
}

export async function startKeyServer(): Promise<TokenKeys> {
  const { publicKey, privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  const kid = 'test';
  const keys = [{ ...publicKey.export({ format: 'jwk' }), kid, alg: 'RS256', use: 'sig' }];
  const server = createServer((_, response) => {
    response.setHeader('content-type', 'application/json').end(JSON.stringify({ keys }));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const encode = (part: unknown): string => Buffer.from(JSON.stringify(part)).toString('base64url');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/keys`,
    token({ namespace, role }) {
      const expires = Math.floor(Date.now() / 1000) + 3_600;
      const claims = { sub: 'a user of a test', permissions: [`${namespace}:${role}`], exp: expires };
      const text = `${encode({ alg: 'RS256', typ: 'JWT', kid })}.${encode(claims)}`;
      return `${text}.${createSign('RSA-SHA256').update(text).sign(privateKey, 'base64url')}`;
    },
    async close() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}
