/* Between two methods of Chain.java. */
#include <jni.h>

__attribute__((noinline)) static int one(JNIEnv *env, jclass class, jmethodID back, int n)
{
    return (*env)->CallStaticIntMethod(env, class, back, n);
}

JNIEXPORT jint JNICALL Java_Chain_each(JNIEnv *env, jclass class, jint times)
{
    static jmethodID back;
    if (!back)
        back = (*env)->GetStaticMethodID(env, class, "back", "(I)I");
    int sum = 0;
    for (int i = 0; i < times; i++)
        sum += one(env, class, back, i);
    return sum;
}
