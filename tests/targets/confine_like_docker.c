/* Runs a command as a container without rights does: nobody's user number, no capability, no new privileges, and a filter that answers
   EPERM to what Docker's default profile denies without capabilities. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const int denied[] = {
    SYS_acct, SYS_add_key, SYS_bpf, SYS_clock_adjtime, SYS_clock_settime, SYS_delete_module, SYS_finit_module,
    SYS_fanotify_init, SYS_fsconfig, SYS_fsmount, SYS_fsopen, SYS_fspick, SYS_get_mempolicy, SYS_init_module,
    SYS_ioperm, SYS_iopl, SYS_io_uring_enter, SYS_io_uring_register, SYS_io_uring_setup, SYS_kcmp,
    SYS_kexec_file_load, SYS_kexec_load, SYS_keyctl, SYS_lookup_dcookie, SYS_mbind, SYS_mount, SYS_mount_setattr,
    SYS_move_mount, SYS_move_pages, SYS_open_by_handle_at, SYS_open_tree, SYS_perf_event_open, SYS_pivot_root,
    SYS_process_vm_readv, SYS_process_vm_writev, SYS_ptrace, SYS_quotactl, SYS_reboot, SYS_request_key,
    SYS_set_mempolicy, SYS_setdomainname, SYS_sethostname, SYS_setns, SYS_settimeofday, SYS_swapoff, SYS_swapon,
    SYS_sysfs, SYS_syslog, SYS_umount2, SYS_unshare, SYS_userfaultfd, SYS_ustat, SYS_vhangup,
};
#define DENIED (sizeof denied / sizeof *denied)

int main(int argc, char **argv)
{
    struct sock_filter code[DENIED + 8];
    int n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < DENIED; i++)
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, denied[i], DENIED - i, 0);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    struct sock_fprog program = { n, code };
    if (getuid() == 0 && (setgid(65534) || setuid(65534)))
        return 120;
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct none[2] = { { 0 } };
    if (syscall(SYS_capset, &header, none) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        return 121;
    if (argc < 2)
        return 122;
    execv(argv[1], argv + 1);
    perror("execv");
    return 123;
}
