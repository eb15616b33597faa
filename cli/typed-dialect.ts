import { dialects } from '../config/dialects/index.ts';
import { dialectOfCommand } from '../config/dialects/prime-rl-files.ts';
import type { TomlFile } from '../config/parse-toml.ts';
import { refuseOtherKind } from './other-kinds.ts';

/** The dialect of `--dialect`, or of the command that was typed. Throws ConfigInvalid where a file says that it is for something else. */
export function typedDialect(
  toml: TomlFile,
  { dialect, command, isAlone }: { readonly dialect?: string; readonly command?: string; readonly isAlone: boolean },
): { readonly dialect?: string } {
  if (isAlone && dialect === undefined) refuseOtherKind(toml);
  const meant = dialect ?? dialectOfCommand(command, toml.table, dialects);
  return meant === undefined ? {} : { dialect: meant };
}
