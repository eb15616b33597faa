import { z } from 'zod';
import { atLeastZero } from '../toml/values.ts';
import { inSpec, optionalTable, setting, specFields, type WrittenIn } from './setting.ts';

/** `[trainer.echo]` and `[env.echo]`: cross entropy on an environment's own messages, beside rewards. */

export const echoRoles = {
  tool: setting(
    atLeastZero(),
    'weight of the cross entropy of what tools answered, beside the policy loss and over its own number of tokens; prime-rl’s `echo` has 0.1. What stands before the first turn of a row is never learned',
    { isLeftOut: true },
  ),
  user: setting(atLeastZero(), 'the same of what a user said after the first turn', { isLeftOut: true }),
  system: setting(atLeastZero(), 'the same of system messages', { isLeftOut: true }),
  assistant: setting(atLeastZero(), 'the same of what an environment said in place of the policy', { isLeftOut: true }),
};
export const echo = optionalTable(echoRoles);
export const EchoSpec = z.strictObject(specFields(echoRoles));

type Written = WrittenIn<typeof echoRoles>;

/** The environment's own setting, else the run's. Absent if all weights are 0. */
export function echoSpec(own: Written | undefined, ofRun: Written | undefined): { echo?: z.infer<typeof EchoSpec> } {
  const weights = inSpec(echoRoles, own ?? ofRun ?? {});
  const used = Object.fromEntries(Object.entries(weights).filter(([, weight]) => weight !== 0));
  return Object.keys(used).length === 0 ? {} : { echo: used };
}
