import type { Reporter } from './reporter.ts';
import { findSecrets } from './secrets.ts';
import type { Table } from './tables.ts';

export const rotate =
  'rotate it, since it has been in a file; put the new one in an environment variable and name that instead';

/** Advice for a secret that was typed. */
export const rotateTyped =
  'rotate it; put the new one in an environment variable and name that with -k (api_key_var), from which it is sent as the server wants it';

/** Literal secrets are reported by place, never repeated. */
export function reportSecrets(table: Table, reporter: Reporter): void {
  for (const path of findSecrets(table)) {
    reporter.add({
      path,
      expected: 'no secrets: this file is copied into the store and shown in reports',
      received: 'what looks like a literal secret (not repeated here)',
      suggestion: rotate,
    });
  }
}
