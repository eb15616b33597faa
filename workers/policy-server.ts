/** Entry of the policy server's process: reads its secret before any other module. */
import './take-secrets.ts';

await import('../engine/server/main.ts');
