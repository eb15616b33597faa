import { quote } from './typed-command.ts';

/** Option of commands that look at a run's folder. Without it, `findRunFolder` decides. */
export const storeOption = [
  '--store <uri>',
  'where the runs are (default: ./outputs, else where the run itself says)',
] as const;

/** A command to type next, which has to find the same run in the same place. */
export function withStore(command: string, store: string | undefined): string {
  return store === undefined ? command : `${command} --store ${quote(store)}`;
}

/** Option of commands that use things a stored run names. Each value is one line of the refusal. */
export const grantOption = [
  '--grant <line>',
  'grant one thing that the run names; without it the command says what there is to type (repeatable)',
  (value: string, before: readonly string[] | undefined): string[] => [...(before ?? []), value],
] as const;
