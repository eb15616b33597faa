/** Entry of the policy server's process: its secret is there before anything is loaded. */
import './take-secrets.ts';

await import('../engine/server/main.ts');
